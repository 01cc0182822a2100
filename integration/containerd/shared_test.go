// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// sharing are the options of containers of which so many share a shim.
func (e *env) sharing(n int) config {
	return config{new: withOptions(e, fmt.Sprintf("PodsPerShim = %d\n", n))}
}

// wantShims checks how many shims there are.
func (e *env) wantShims(want int) {
	e.Helper()
	if shims := harness.Shims(e.namespace, ""); len(shims) != want {
		e.Errorf("shims: %v, want %d", shims, want)
	}
}

func TestShared_ShimHasSoManyContainers(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	all := map[string]*task{}
	for i := range 7 {
		id := fmt.Sprint("c", i)
		all[id] = e.run(id, e.sharing(3), "sh", "-c", "echo "+id+" >/id; exec sleep 1000")
		e.wantShims(1 + i/3)
	}
	other := e.run("other", e.sharing(4), "sleep", "1000") // has options of its own
	e.wantShims(4)
	for id, c := range all {
		c.file("/id")
		x := c.runExec("x", "cat", "/id")
		if x.out.String() != id+"\n" {
			t.Errorf("exec in %s: %q", id, x.out.String())
		}
	}
	all["c1"].kill()
	e.run("again", e.sharing(3), "sleep", "1000").kill()
	e.wantShims(4)
	for id, c := range all {
		if id != "c1" {
			c.kill()
			e.wantEvents(id, fmt.Sprintf("create %[1]s | start %[1]s | exec-added x | exec-start x | exit x | exit %[1]s 137 | delete %[1]s", id))
		}
	}
	other.kill()
}

// The shim that was started for a container outlives it, and another one is started for the same id.
func TestShared_IDIsUsedAgain(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	var all []*task
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, e.run(id, e.sharing(3), "sleep", "1000"))
	}
	all[0].kill()
	e.remove(all[0].container)
	all[0] = e.run("d", e.sharing(3), "sleep", "1000") // in its place
	e.wantShims(1)
	all = append(all, e.run("a", e.sharing(3), "sleep", "1000"))
	e.wantShims(2)
	for _, c := range all {
		c.runExec("x", "true")
		c.kill()
	}
}

// A shim that is killed takes all of its containers along, and nothing else. Each exit is told.
func TestShared_ShimIsKilled(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	var all []*task
	for i := range 4 {
		all = append(all, e.run(fmt.Sprint("c", i), e.sharing(3), "sleep", "1000"))
	}
	pid := e.shim("c0")
	e.must(unix.Kill(pid, unix.SIGKILL), "kill the shim")
	for i := range 3 {
		id := fmt.Sprint("c", i)
		e.waitEvents(id, fmt.Sprintf("exit %[1]s 137 | delete %[1]s", id))
		all[i].closeIO()
	}
	again := e.run("again", e.sharing(3), "sleep", "1000")
	e.wantShims(1)
	again.kill()
	if got := e.events.Text("c3"); got != "create c3 | start c3" {
		t.Errorf("events of a container of another shim: %q", got)
	}
	all[3].runExec("x", "true")
	all[3].kill()
}

func TestShared_ShimsAreUpgraded(t *testing.T) {
	e := newUpgradable(t)
	options := config{new: withOptions(e.env, "PodsPerShim = 3\nStopTimeout = '9s'\n")} // of which one is an annotation, too
	a, b := e.run("a", options, "sleep", "1000"), e.run("b", options, "sleep", "1000")
	e.upgrade("a")
	b.runExec("x", "true")
	c := e.run("c", options, "sleep", "1000") // the shim is one of the installed program
	e.wantShims(1)
	e.installed.Release(t)
	a.kill()
	d := e.run("d", options, "sleep", "1000") // there is room, in a shim of a former release
	e.wantShims(2)
	for _, one := range []*task{b, c, d} {
		one.kill()
	}
}

// A change of the default configuration file is for the next shim.
func TestShared_ByTheDefaultFile(t *testing.T) {
	e, file := newDefaultsEnv(t)
	none := config{new: []client.NewContainerOpts{client.WithRuntime(e.containerd.Env.Runtime, nil)}}
	var all []*task
	for i, text := range []string{"PodsPerShim = 3", "PodsPerShim = 3", "PodsPerShim = 3\nMaxShmSize = '1Gi'", "PodsPerShim = 1"} {
		e.must(os.WriteFile(file, []byte(text), 0o600), "write the file")
		all = append(all, e.run(fmt.Sprint("c", i), none, "sleep", "1000"))
		e.wantShims(max(1, i))
	}
	for _, c := range all {
		c.runExec("x", "true")
		c.kill()
	}
}

// The leftovers that finish looks for would be the link by which others find the shim.
func TestShared_StartThatFailsLeavesNothing(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	options := withOptions(e, "PodsPerShim = 3\nShimCgroup = '/no/such/cgroup'\n")
	_, err := e.tryCreate("c1", config{new: options}, "true")
	wantError(t, err, nil, "ShimCgroup \"/no/such/cgroup\"")
}

// The log of the shim goes on when the container that it was started for is gone.
func TestShared_LogGoesOn(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	first := e.run("first", e.sharing(3), "sleep", "1000")
	pid := e.shim("first")
	second := e.run("second", e.sharing(3), "sleep", "1000")
	first.kill()
	logStart := e.containerd.LogSize()
	e.must(unix.Kill(pid, unix.SIGUSR1), "ask for the stacks")
	harness.Eventually(t, "the shim's stacks in the log", func() error {
		if text := e.containerd.LogFrom(logStart); !strings.Contains(text, "goroutine dump: ") {
			return errors.New("they are not there")
		}
		return nil
	})
	second.kill()
}

// Whoever starts a container at the same time gets the same shim.
func TestShared_ManyStartsAtOnce(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	const n = 24
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			c, err := e.tryCreate(fmt.Sprint("c", i), e.sharing(8), "true")
			if err == nil {
				err = c.process.Start(e.ctx)
			}
			if err == nil {
				c.wantExit(0)
			}
			errs[i] = err
		})
	}
	all.Wait()
	e.must(errors.Join(errs...), "run")
}

// A start that a shim answers is over before Go's runtime begins, which would print a trace here, into the answer.
func TestShared_StartNeedsNoGo(t *testing.T) {
	e := newUpgradable(t)
	trace := filepath.Join(publicDir(t), "trace")
	e.installed.Traces(t, trace)
	for name, options := range map[string]config{"shared": e.sharing(3), "alone": {}} {
		id := func(s string) string { return name + "-" + s }
		of := func(kind string) config {
			c := options
			c.opts = with(annotations("io.kubernetes.cri.sandbox-id", id("first"), "io.kubernetes.cri.container-type", kind))
			return c
		}
		first := e.run(id("first"), of("sandbox"), "sleep", "1000")
		e.must(os.WriteFile(trace, nil, 0o600), "trace from now on")
		second := e.run(id("second"), of("container"), "sleep", "1000")
		if e.pidOfShim(id("second")) != e.shim(id("first")) {
			t.Errorf("%s: the second container of a pod has another shim", name)
		}
		if name == "shared" {
			e.run("third", options, "sleep", "1000").kill()
		}
		e.must(os.Remove(trace), "trace no more")
		second.kill()
		first.kill()
	}
}

// pidOfShim is shim for a container for which no shim was started.
func (e *env) pidOfShim(id string) int {
	e.Helper()
	pid, err := harness.ShimPid(e.bundle(id))
	e.must(err, "shim of "+id)
	return pid
}

// A container without a terminal has seven descriptors in its shim, which may have hundreds of them: a connection of
// containerd's, two ends for each output, a pidfd and the watch for OOM kills.
func TestShared_DescriptorsOfContainers(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	count := func() int {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.shim("c0")))
		e.must(err, "descriptors of the shim")
		return len(fds)
	}
	const more = 8
	all := []*task{e.run("c0", e.sharing(1+more), "sleep", "1000")}
	before := count()
	for i := range more {
		all = append(all, e.run(fmt.Sprint("c", 1+i), e.sharing(1+more), "sleep", "1000"))
	}
	if each := (count() - before) / more; each > 7 { // the rest is that of calls
		t.Errorf("%d descriptors for each container, want 7", each)
	}
	for _, c := range all {
		c.kill()
	}
}

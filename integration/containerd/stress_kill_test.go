// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// pidNamespaces are the two ways in which a container's processes end: the kernel kills all of them with the first one,
// or the shim has to.
var pidNamespaces = []struct {
	name string
	opts []oci.SpecOpts
}{
	{"own", nil},
	{"host", []oci.SpecOpts{oci.WithHostNamespace(specs.PIDNamespace)}},
}

func TestKill_OfAPausedContainerWorksAtOnceOrAtResume(t *testing.T) {
	parent := newEnv(t)
	t.Run("SIGKILL at once", func(t *testing.T) {
		e := parent.sub(t)
		c := e.run("k1", config{}, "sh", "-c", "sleep 1000 & wait")
		e.must(c.Pause(e.ctx), "pause")
		c.kill()
	})
	t.Run("SIGKILL to all at once", func(t *testing.T) {
		e := parent.sub(t)
		c := e.run("k2", config{}, "sh", "-c", "sleep 1000 & wait")
		e.must(c.Pause(e.ctx), "pause")
		e.must(c.process.Kill(e.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
		c.wantExit(137)
	})
	t.Run("SIGKILL to an exec when it is resumed", func(t *testing.T) {
		e := parent.sub(t)
		c := e.run("k3", config{}, "sleep", "1000")
		x := c.exec("k3x", config{}, nil, "sleep", "1000")
		e.must(x.Start(e.ctx), "start exec")
		e.must(c.Pause(e.ctx), "pause")
		e.must(x.Kill(e.ctx, syscall.SIGKILL), "kill exec")
		wantStatus(c, client.Paused)
		e.must(c.Resume(e.ctx), "resume")
		x.wantExit(137)
		c.kill()
	})
	t.Run("SIGTERM when it is resumed", func(t *testing.T) {
		e := parent.sub(t)
		c := e.run("k4", config{}, "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done")
		c.out.WaitFor(t, "ready")
		e.must(c.Pause(e.ctx), "pause")
		e.must(c.process.Kill(e.ctx, syscall.SIGTERM), "kill")
		wantStatus(c, client.Paused)
		e.must(c.Resume(e.ctx), "resume")
		c.wantExit(9)
	})
}

// freezer are the files that freeze a cgroup, on either version.
var freezer = []struct{ file, frozen, state, done string }{
	{"freezer.state", "FROZEN", "freezer.state", "FROZEN"},
	{"cgroup.freeze", "1", "cgroup.events", "frozen 1"},
}

// freeze freezes the cgroup path below the root of its hierarchy behind the runtime's back.
func freeze(tb testing.TB, path string) {
	tb.Helper()
	roots, err := harness.CgroupRoots()
	if err != nil {
		tb.Fatal(err)
	}
	for _, root := range roots {
		for _, f := range freezer {
			err := os.WriteFile(filepath.Join(root, path, f.file), []byte(f.frozen), 0)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				continue // the other version's, or a hierarchy without
			}
			if err != nil {
				tb.Fatal(err)
			}
			harness.Eventually(tb, "frozen cgroup", func() error {
				text, err := os.ReadFile(filepath.Join(root, path, f.state))
				if err != nil || !strings.Contains(string(text), f.done) {
					return fmt.Errorf("%s: %q (%w)", f.state, text, err)
				}
				return nil
			})
			return
		}
	}
	tb.Fatalf("cgroup %s: no freezer", path)
}

// forEachKill runs test, beside others, for SIGKILL to the first process and to all, in each kind of PID namespace.
func forEachKill(t *testing.T, test func(e *env, id string, opts []oci.SpecOpts) (killed *task)) {
	t.Helper()
	parent := newEnv(t)
	for _, all := range []bool{false, true} {
		for _, tt := range pidNamespaces {
			t.Run(fmt.Sprintf("%s pid namespace, all %t", tt.name, all), func(t *testing.T) {
				e := parent.sub(t)
				c := test(e, fmt.Sprintf("c-%s-%t", tt.name, all), tt.opts)
				var opts []client.KillOpts
				if all {
					opts = append(opts, client.WithKillAll)
				}
				e.must(c.process.Kill(e.ctx, syscall.SIGKILL, opts...), "kill")
				c.wantExit(137)
			})
		}
	}
}

func TestKill_OfAContainerThatSomebodyElseFroze(t *testing.T) {
	harness.OursOnly(t, "that SIGKILL thaws what it did not freeze")
	forEachKill(t, func(e *env, id string, opts []oci.SpecOpts) *task {
		c := e.run(id, config{opts: opts}, "sh", "-c", "sleep 1000 & echo ready; wait")
		c.out.WaitFor(e, "ready")
		freeze(e, "/"+e.namespace+"/"+id)
		return c
	})
}

func TestKill_OfAContainerWithStoppedProcesses(t *testing.T) {
	forEachKill(t, func(e *env, id string, opts []oci.SpecOpts) *task {
		c := e.run(id, config{opts: opts}, "sh", "-c", "sleep 1000 & kill -STOP $!; echo ready; wait")
		c.out.WaitFor(e, "ready")
		e.must(unix.Kill(int(c.Task.Pid()), unix.SIGSTOP), "stop init")
		wantStatus(c, client.Running) // the kernel has stopped it, nobody paused the container
		return c
	})
}

func TestKill_AllReachesAll(t *testing.T) {
	harness.OursOnly(t, "that a signal to all reaches execs")
	parent := newEnv(t)
	const script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done"
	for _, tt := range pidNamespaces {
		t.Run(tt.name+" pid namespace", func(t *testing.T) {
			e := parent.sub(t)
			c := e.run("a-"+tt.name, config{opts: tt.opts}, "sh", "-c", script)
			x := c.exec("a-"+tt.name+"-x", config{}, nil, "sh", "-c", script)
			e.must(x.Start(e.ctx), "start exec")
			c.out.WaitFor(t, "ready")
			x.out.WaitFor(t, "ready")
			e.must(c.process.Kill(e.ctx, syscall.SIGTERM, client.WithKillAll), "signal all")
			c.out.WaitFor(t, "term")
			x.out.WaitFor(t, "term")
			e.must(c.process.Kill(e.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
			x.wantExit(137)
			c.wantExit(137)
		})
	}
}

func TestKill_EndsAForkBomb(t *testing.T) {
	harness.OursOnly(t, "to be faster than the bomb") // the runc shim takes a minute or two in the host's pid namespace
	dir := publicDir(t)
	// A shell that cannot fork gives up, and the bomb would defuse itself. awk goes on.
	if err := os.WriteFile(filepath.Join(dir, "bomb"),
		[]byte(`exec awk 'BEGIN { while (1) system("sh /bomb/bomb &") }'`), 0o644); err != nil {
		t.Fatal(err)
	}
	parent := newEnv(t)
	for _, tt := range pidNamespaces {
		t.Run(tt.name+" pid namespace", func(t *testing.T) {
			e := parent.sub(t)
			id := "b-" + tt.name
			cgroup := "/" + e.namespace + "/" + id
			c := e.run(id, config{opts: append(with(oci.WithPidsLimit(200), bind(dir, "/bomb", "ro")), tt.opts...)},
				"sleep", "1000")
			x := c.exec(id+"-x", config{}, nil, "sh", "-c", "exec sh /bomb/bomb 2>/dev/null")
			e.must(x.Start(e.ctx), "start bomb")
			// A walk of /proc misses many of them, since most live for a moment only.
			harness.Eventually(t, "as many processes as the limit allows", func() error {
				events, err := harness.CgroupFile(cgroup, "pids.events", "pids.events")
				if err == nil && (events == "" || strings.HasPrefix(events, "max 0")) {
					err = fmt.Errorf("pids.events has %q: no fork was refused", events)
				}
				return err
			})
			began := time.Now()
			e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill")
			c.exit()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the container was dead after %v, want less than 10s", took)
			}
			if left := harness.InCgroup(cgroup); len(left) > 0 {
				t.Errorf("%d processes alive after the exit, the first %v", len(left), left[0])
			}
			x.exit()
			x.delete()
			c.delete()
		})
	}
}

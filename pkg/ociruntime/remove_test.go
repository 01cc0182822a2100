// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// withoutSpec is the configuration as it is when the bundle is gone.
func withoutSpec(c process.Config) process.Config {
	c.Spec, c.Rootfs = nil, ""
	return c
}

// hungCat returns a process in uninterruptible sleep. It ends with the test.
func hungCat(t *testing.T) *exec.Cmd {
	t.Helper()
	file := hungfs.MountFile(t, t.TempDir())
	defer testReaper.Suspend()() // until it is known how it ends
	for {
		cat := exec.Command("cat", file)
		testx.Must(t, cat.Start())
		is := func(state string) bool {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cat.Process.Pid))
			testx.Must(t, err)
			return strings.Contains(string(text), ") "+state+" ")
		}
		opened := func() bool {
			target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", cat.Process.Pid))
			return err == nil && target == file
		}
		testx.Eventually(t, "wait for the file", func() bool { return opened() && is("S") })
		testx.Must(t, cat.Process.Kill()) // which a process that waits for an answer cannot end by
		testx.Eventually(t, "end or uninterruptible sleep", func() bool { return is("Z") || is("D") })
		if is("D") {
			t.Cleanup(func() { go func() { _ = cat.Wait() }() })
			return cat
		}
		_ = cat.Wait() // it had not asked yet
	}
}

// The shim died while it paused the container. A process that waits for a file system does not let that end.
func TestRemove_OfOneThatIsBeingFrozen(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	b := create(t, c).start()
	t.Run("while a process does not stop", func(t *testing.T) {
		cat := hungCat(t)
		file, frozen, state, freezing := "cgroup.freeze", "1", "cgroup.events", "frozen 0"
		path := b.Cgroup().Path("")
		if v1 := b.Cgroup().Path("freezer"); !b.Cgroup().Unified() {
			file, frozen, state, freezing, path = "freezer.state", "FROZEN", "freezer.state", "FREEZING", v1
		}
		testx.Must(t, os.WriteFile(filepath.Join(path, "cgroup.procs"), fmt.Append(nil, cat.Process.Pid), 0))
		testx.Must(t, os.WriteFile(filepath.Join(path, file), []byte(frozen), 0))
		if text, err := os.ReadFile(filepath.Join(path, state)); err != nil || !strings.Contains(string(text), freezing) {
			t.Fatalf("%s = %q, %v, want %q, so the test proves nothing", state, text, err, freezing)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		removed := make(chan error, 1)
		go func() { removed <- Remove(ctx, c) }()
		select {
		case err := <-removed:
			testx.WantText(t, err, fmt.Sprintf("%d (cat) D", cat.Process.Pid))
		case <-time.After(5 * time.Second):
			t.Error("Remove does not return")
			testx.Must(t, b.Cgroup().Thaw())
		}
	})
	b.wait()
	testx.Must(t, Remove(bounded(t), c))
}

func TestRemove_AfterTheShimDied(t *testing.T) {
	same := func(c process.Config) process.Config { return c }
	for _, tc := range []struct {
		name, stage string
		change      func(*process.Config)
		call        func(process.Config) process.Config // what is removed then
	}{
		{"a container that was created", "created", nil, same},
		{"a container that runs", "running", nil, same},
		{"a container that is paused", "paused", nil, same},
		{"a container without a PID namespace of its own", "running", hostPIDs, same},
		{"a paused container without a PID namespace of its own", "paused", hostPIDs, same},
		{"a container whose bundle is gone", "running", nil, withoutSpec},
		{"a container whose state is broken", "running", nil, func(c process.Config) process.Config {
			testx.Write(t, filepath.Join(c.Root, c.ID, "state.json"), "{half")
			return c
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig(t, "sh", "-c", "sleep 1000 & sleep 1000")
			if tc.change != nil {
				tc.change(&c)
			}
			killedShim(t, life{Config: c, Stage: tc.stage}, "")
			pids := members(t, c)
			if len(pids) == 0 && tc.stage != "created" { // such an init ends when the shim does
				t.Error("no process survived the shim, so the test proves nothing")
			}
			call := tc.call(c)
			for i := range 2 {
				if err := Remove(bounded(t), call); err != nil {
					t.Errorf("Remove, call %d: %v", i+1, err)
				}
			}
			wantDead(t, pids)
			wantNothingLeft(t, c)
		})
	}
}

func hostPIDs(c *process.Config) {
	c.Spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	c.Spec.Mounts = c.Spec.Mounts[1:] // /proc needs the namespace
}

// The state directory of no id is that of all containers.
func TestRemove_RefusesAnEmptyID(t *testing.T) {
	c := newConfig(t, "true")
	testx.Must(t, Remove(bounded(t), c)) // which never existed
	testx.Must(t, Remove(bounded(t), withoutSpec(c)))
	other := filepath.Join(c.Root, "other")
	testx.Must(t, os.MkdirAll(other, 0o700))
	c.ID = ""
	testx.WantInvalid(t, Remove(bounded(t), c))
	if !testx.Exists(other) {
		t.Error("the state of another container is gone")
	}
}

// The shim dies while a hook of Create runs: the first stage of init lives in
// the cgroup, and there is no state yet.
func TestRemove_AHalfMadeContainer(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	entered := note(c, "entered")
	c.Spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{shell(enters(entered) + "exec sleep 1000")}}
	killedShim(t, life{Config: c, Stage: "created"}, entered)
	pid, err := strconv.Atoi(strings.TrimSpace(testx.Read(t, entered)))
	testx.Must(t, err)
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }() // the hook is the test's own
	pids := members(t, c)
	if testx.Exists(filepath.Join(c.Root, c.ID, "state.json")) || len(cgroupDirs(t, c)) == 0 {
		t.Fatal("there is a state already, or no cgroup yet, so the test proves nothing")
	}
	for i := range 2 {
		if err := Remove(bounded(t), c); err != nil {
			t.Errorf("Remove, call %d: %v", i+1, err)
		}
	}
	wantDead(t, pids)
}

// The shim dies while it makes the cgroup, on v1 in one hierarchy after the other. The process of the pod, whose user
// namespace the container was to join, may have died with it.
func TestRemove_ACgroupInOneHierarchy(t *testing.T) {
	c := newConfig(t, "true")
	made := create(t, c)
	dirs := cgroupDirs(t, c)
	testx.Must(t, made.Discard())
	if len(dirs) == 0 {
		t.Fatal("the container had no cgroup, so the test proves nothing")
	}
	gone := specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/4194305/ns/user"} // above the highest pid
	for _, namespaces := range [][]specs.LinuxNamespace{c.Spec.Linux.Namespaces, append(c.Spec.Linux.Namespaces, gone)} {
		c.Spec.Linux.Namespaces = namespaces
		for _, dir := range dirs {
			testx.Must(t, os.MkdirAll(filepath.Join(c.Root, c.ID), 0o700))
			testx.Must(t, os.MkdirAll(dir, 0o755))
			if err := Remove(bounded(t), c); err != nil {
				t.Errorf("Remove with %s: %v", dir, err)
			}
			wantNothingLeft(t, c)
		}
	}
}

// Nobody would know what it was, once the state is gone.
func TestRemove_WithABrokenStateAndWithoutABundle(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	killedShim(t, life{Config: c, Stage: "running"}, "")
	pids, state := members(t, c), filepath.Join(c.Root, c.ID, "state.json")
	testx.Must(t, os.WriteFile(state, []byte("{half"), 0o600))
	testx.WantText(t, Remove(bounded(t), withoutSpec(c)), c.ID, "no config.json of use", stateDir(c.Root, c.ID))
	testx.Must(t, errors.Join(os.Remove(state), os.Mkdir(state, 0o700))) // to read which fails with an errno
	if err := Remove(bounded(t), c); !errors.Is(err, unix.EISDIR) {
		t.Errorf("Remove = %v, want %v", err, unix.EISDIR)
	}
	for _, pid := range pids {
		testx.Must(t, unix.Kill(pid, 0)) // which fails if it is dead
	}
	testx.Must(t, os.Remove(state))
	testx.Must(t, Remove(bounded(t), c))
	wantDead(t, pids)
}

// What is removed without a state is only the configuration's word: a cgroup
// that another container took is left alone.
func TestRemove_LeavesTheCgroupOfAnother(t *testing.T) {
	other := create(t, newConfig(t, "sleep", "1000")).start()
	c := newConfig(t, "true")
	c.Spec.Linux.CgroupsPath = other.config.Spec.Linux.CgroupsPath
	if err := Remove(bounded(t), c); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if err := other.Init().Signal(0); err != nil {
		t.Errorf("the other container's init: %v", err)
	}
}

func TestRemove_StopsAsItIsTold(t *testing.T) {
	// It tells that it hears, and what it heard, by files, as nobody reads its
	// output any more.
	const hears = "trap 'echo > /heard; exit' QUIT; echo > /ready; while :; do sleep 0.01; done"
	const deaf = "trap 'echo > /heard' QUIT; echo > /ready; while :; do sleep 0.01; done"
	for _, tc := range []struct {
		name, script, stage string
		grace, limit        time.Duration
		heard               bool
		least               time.Duration
	}{
		{"one that ends by itself", hears, "running", time.Minute, time.Minute, true, 0},
		{"one that is paused", hears, "paused", time.Minute, time.Minute, true, 0},
		{"one that does not end", deaf, "running", time.Second, time.Minute, true, time.Second},
		{"one that would take all the time there is", deaf, "running", time.Minute, removalReserve + 3*time.Second, true, time.Second},
		{"one that is never started", hears, "created", time.Minute, time.Minute, false, 0},
		{"no grace", hears, "running", 0, time.Minute, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newConfig(t, "sh", "-c", tc.script)
			stage := tc.stage
			if stage == "paused" {
				stage = "running" // not before Start has removed the fifo, by which libcontainer tells
			}
			killedShim(t, life{Config: c, Stage: stage}, "")
			if stage == "running" {
				testx.Eventually(t, "its trap", func() bool { return testx.Exists(filepath.Join(c.Rootfs, "ready")) })
			}
			if tc.stage == "paused" {
				lc, err := libcontainer.Load(c.Root, c.ID)
				testx.Must(t, err)
				testx.Must(t, lc.Pause())
			}
			c.Stop = process.Stop{Signal: unix.SIGQUIT, Grace: tc.grace}
			ctx, cancel := context.WithTimeout(t.Context(), tc.limit)
			defer cancel()
			start := time.Now()
			testx.Must(t, Remove(ctx, c))
			if took := time.Since(start); took < tc.least || took > min(tc.limit, 30*time.Second) {
				t.Errorf("Remove took %v, want at least %v, and less than the grace", took, tc.least)
			}
			if heard := testx.Exists(filepath.Join(c.Rootfs, "heard")); heard != tc.heard {
				t.Errorf("it heard the signal: %t, want %t", heard, tc.heard)
			}
			wantNothingLeft(t, c)
		})
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"sandbox.internal/shim/integration/harness"
)

// lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func lacking(tb testing.TB, name, what string) {
	tb.Helper()
	harness.Lacking(tb, name, what)
}

// frozenFS mounts a file system of its own and returns where. From freeze to thaw, who writes to it is in
// uninterruptible sleep, which no signal ends. Both are called once at most in effect; the test's end thaws too.
func frozenFS(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	dir, image := publicDir(t), filepath.Join(t.TempDir(), "image")
	for _, command := range [][]string{
		{"truncate", "--size=16M", image},
		{"mkfs.ext4", "-q", image},
		{"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			lacking(t, "loop", fmt.Sprintf("ext4 on a loop device: %v: %v: %s", command, err, out))
		}
	}
	t.Cleanup(func() {
		harness.Eventually(t, "unmounted file system", func() error { return syscall.Unmount(dir, 0) })
	})
	run := func(option string) func() {
		return sync.OnceFunc(func() {
			if out, err := exec.Command("fsfreeze", option, dir).CombinedOutput(); err != nil {
				t.Errorf("fsfreeze %s: %v: %s", option, err, out)
			}
		})
	}
	return dir, run("--freeze"), run("--unfreeze")
}

// stuckPid returns the process of a container that is in uninterruptible sleep, once there is one.
func (e *env) stuckPid(id string) (pid int) {
	e.Helper()
	// A process sleeps like that for a moment in other calls too. One that hangs was not switched to in between.
	before := map[int]string{}
	harness.Eventually(e, "process in uninterruptible sleep", func() error {
		for _, p := range harness.InCgroup("/" + e.namespace + "/" + id) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
			_, switches, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
			if err == nil && strings.Contains(string(status), "\nState:\tD") && before[p.Pid] == switches {
				pid = p.Pid
				return nil
			}
			before[p.Pid] = switches
		}
		return errors.New("none")
	})
	return pid
}

// wantFast calls f and fails the test when that takes longer than bound.
func wantFast(t *testing.T, what string, bound time.Duration, f func() error) error {
	t.Helper()
	began := time.Now()
	err := errgrpc.ToNative(f())
	took := time.Since(began)
	t.Logf("%s = %v after %v", what, err, took)
	if took > bound {
		t.Errorf("%s took %v, want less than %v", what, took, bound)
	}
	return err
}

// The first process of a container, or its child, hangs in the kernel. Kill and Delete answer all the same, and when
// the process can die the container ends as any other.
func TestKill_OfAContainerThatCannotDieSaysSo(t *testing.T) {
	harness.OursOnly(t, "answers while a process cannot die")
	const first, child = "while :; do echo x >/frozen/file; done", "(while :; do echo x >/frozen/file; done) & wait"
	for _, tt := range []struct {
		name, script string
		namespace    []oci.SpecOpts
		outlived     bool // the exit is reported before the process that hangs can die
	}{
		{"the first process", first, nil, false},
		{"a child", child, nil, false},
		{"the first process in the host's pid namespace", first, pidNamespaces[1].opts, false},
		{"a child in the host's pid namespace", child, pidNamespaces[1].opts, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			dir, freeze, thaw := frozenFS(t)
			other := e.run("other", config{opts: with(inOneShim)}, "sleep", "1000")
			c := e.run("c1", config{opts: append(with(inOneShim, bind(dir, "/frozen", "rw")), tt.namespace...)}, "sh",
				"-c", tt.script)
			t.Cleanup(thaw) // before the container is removed
			freeze()
			stuck := e.stuckPid("c1")
			direct := e.direct("c1")
			err := wantFast(t, "Kill", 2*time.Second, func() error { return c.process.Kill(e.ctx, syscall.SIGKILL) })
			e.must(err, "kill")
			if tt.outlived {
				if got := c.exit(); got != 137 {
					t.Errorf("exit status = %d, want 137", got)
				}
			}
			// In time for CRI, which waits 10 s, the error says that the container is still there.
			err = wantFast(t, "Delete", 8*time.Second, func() error {
				_, err := direct.Delete(e.ctx, &task3.DeleteRequest{ID: "c1"})
				return err
			})
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Delete = %v, want FailedPrecondition", err)
			}
			x := other.exec("x", config{}, nil, "echo", "hello")
			e.must(x.Start(e.ctx), "start an exec in the other container")
			x.wantExit(0)
			if !harness.Alive(stuck) {
				t.Error("the process died, and should have been hanging")
			}
			thaw()
			if tt.outlived {
				c.delete()
			} else {
				c.wantExit(137)
			}
			other.kill()
			e.wantEvents("c1", "create c1 | start c1 | exit c1 137 | delete c1")
		})
	}
}

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
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// deaf is a reader of output that opens the fifos and reads nothing.
type deaf struct {
	*cio.FIFOSet
	open []*os.File
}

func (d *deaf) Config() cio.Config { return d.FIFOSet.Config }
func (d *deaf) Cancel()            {}
func (d *deaf) Wait()              {}
func (d *deaf) Close() error {
	var errs []error
	for _, f := range d.open {
		errs = append(errs, f.Close())
	}
	d.open = nil
	return errors.Join(append(errs, d.FIFOSet.Close())...)
}

func (e *env) deaf(id string) (cio.IO, error) {
	fifos, err := cio.NewFIFOSetInDir(e.containerd.Fifos, id, false)
	if err != nil {
		return nil, err
	}
	fifos.Stdin = ""
	d := &deaf{FIFOSet: fifos}
	for _, path := range []string{fifos.Stdout, fifos.Stderr} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		d.open = append(d.open, f)
	}
	return d, nil
}

func (e *env) bundle(id string) string {
	return filepath.Join(e.containerd.State, "io.containerd.runtime.v2.task", e.namespace, id)
}

// inOneShim puts containers into one shim.
var inOneShim = oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": "together"})

// containerd#10094, containerd#9568: an exec hung, or took the whole time-out, when a child that it left held its
// output.
func TestExec_DoesNotHangOnOutputThatItsChildrenHold(t *testing.T) {
	harness.OursOnly(t, "an exec that is over soon after its process is")
	parent := newEnv(t)
	c := parent.run("c1", config{}, "sleep", "1000")
	t.Cleanup(c.kill)
	for i, tt := range []struct {
		name     string
		terminal bool
		script   string
	}{
		{"a child in the background", false, "sleep 1000 & echo done"},
		{"a child in a session of its own", false, "setsid sleep 1000 & echo done"},
		{"a child that goes on writing", false, "(while :; do echo noise >&2; usleep 10000; done) & echo done"},
		{"a child with the terminal", true, "trap '' HUP; setsid sh -c 'trap \"\" HUP; sleep 1000' & echo done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			of := *c
			of.e = e
			x := of.exec(fmt.Sprintf("e%d", i), config{terminal: tt.terminal}, nil, "sh", "-c", tt.script)
			began := time.Now()
			e.must(x.Start(e.ctx), "start")
			x.exit()
			x.out.WaitFor(t, "done")
			_, err := x.Delete(e.ctx) // without the client's own wait for the end of the output
			e.must(err, "delete")
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("exec took %v, want less than 3s", took)
			}
			if got := strings.TrimSpace(x.out.String()); got != "done" {
				t.Errorf("stdout = %q, want done", got)
			}
		})
	}
}

// direct calls the shim of a container, past containerd.
func (e *env) direct(id string) task3.TTRPCTaskService {
	e.Helper()
	direct, err := harness.DialShim(e, e.bundle(id))
	e.must(err, "dial the shim")
	return direct
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
			harness.Lacking(t, "loop", fmt.Sprintf("ext4 on a loop device: %v: %v: %s", command, err, out))
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

// The first process of a container, or its child, hangs in the kernel. Kill and Delete answer all the same, and when
// the process can die the container ends as any other.
func TestKill_OfAContainerThatCannotDieSaysSo(t *testing.T) {
	harness.OursOnly(t, "answers while a process cannot die")
	hostPIDs := with(oci.WithHostNamespace(specs.PIDNamespace)) // where the shim kills them, and not the kernel
	const first, child = "while :; do echo x >/frozen/file; done", "(while :; do echo x >/frozen/file; done) & wait"
	for _, tt := range []struct {
		name, script string
		namespace    []oci.SpecOpts
		outlived     bool // the exit is reported before the process that hangs can die
	}{
		{"the first process", first, nil, false},
		{"a child", child, nil, false},
		{"the first process in the host's pid namespace", first, hostPIDs, false},
		{"a child in the host's pid namespace", child, hostPIDs, true},
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
			err := within(t, 2*time.Second, "Kill", func() error { return c.process.Kill(e.ctx, syscall.SIGKILL) })
			e.must(err, "kill")
			if tt.outlived {
				if got := c.exit(); got != 137 {
					t.Errorf("exit status = %d, want 137", got)
				}
			}
			// In time for CRI, which waits 10 s, the error says that the container is still there.
			err = within(t, 8*time.Second, "Delete", func() error {
				_, err := direct.Delete(e.ctx, &task3.DeleteRequest{ID: "c1"})
				return errgrpc.ToNative(err)
			})
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Delete = %v, want FailedPrecondition", err)
			}
			other.runExec("x", "echo", "hello")
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

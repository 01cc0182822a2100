// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// deleteLimit is what containerd gives the delete command (io.containerd.timeout.shim.cleanup).
const deleteLimit = 5 * time.Second

func TestDelete_RemovesAllThatAKilledShimLeft(t *testing.T) {
	for _, tt := range []struct {
		name   string
		reach  func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle)
		exited uint32
	}{
		{"before create", func(*fakecontainerd.Fake, *fakecontainerd.Shim, *fakecontainerd.Bundle) {}, 137},
		{"after create", func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			_, err := s.Create(f.Ctx, b.CreateRequest())
			f.Must(err, "create")
		}, 137},
		{"running", func(_ *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) { s.Run(b) }, 137},
		{"with execs", func(_ *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			s.Run(b)
			s.RunExec(b.ID, "e1", "sleep", "1000")
			s.RunExec(b.ID, "e2", "sh", "-c", "sleep 1000 & sleep 1000 & wait")
		}, 137},
		{"paused", func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			s.Run(b)
			_, err := s.Pause(f.Ctx, &task.PauseRequest{ID: b.ID})
			f.Must(err, "pause")
		}, 137},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", nil, "sh", "-c", "sleep 1000 & wait")
			s := f.Shim(b)
			tt.reach(f, s, b)
			kill(f, s)
			for _, round := range []string{"first", "second"} {
				began := time.Now()
				r, err := f.DeleteCommand(b)
				if err != nil {
					t.Fatalf("%s delete: %v", round, err)
				}
				if took := time.Since(began); took > deleteLimit {
					t.Errorf("%s delete took %v, containerd allows %v", round, took, deleteLimit)
				}
				if r.GetExitStatus() != tt.exited || r.GetExitedAt().AsTime().Before(began.Add(-time.Minute)) {
					t.Errorf("%s delete = %v, want status %d and a time of now", round, r, tt.exited)
				}
				// All is gone before the bundle is, not because of it.
				f.Scope().Check(t)
			}
			f.Remove(b)
		})
	}
}

// containerd 2.4 runs the delete command as soon as Shutdown is answered, while the shim still ends. Then nothing is
// left to do, and the command says so before it becomes a Go program, which would trace its initialization.
func TestDelete_OfWhatTheShimDeletedIsAnsweredWithoutGo(t *testing.T) {
	const trace = "GODEBUG=inittrace=1"
	for _, tt := range []struct {
		name string
		end  func(f *fakecontainerd.Fake) (*fakecontainerd.Bundle, *task.DeleteResponse)
	}{
		{"container", func(f *fakecontainerd.Fake) (*fakecontainerd.Bundle, *task.DeleteResponse) {
			b := f.Bundle("c1", nil, "sh", "-c", "exit 3")
			s := f.Shim(b)
			s.Run(b)
			_, err := s.Wait(f.Ctx, &task.WaitRequest{ID: b.ID})
			f.Must(err, "wait")
			deleted, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID})
			f.Must(err, "delete")
			_, err = s.Shutdown(f.Ctx, &task.ShutdownRequest{ID: b.ID})
			f.Must(err, "shut down")
			return b, deleted
		}},
		{"pod", func(f *fakecontainerd.Fake) (*fakecontainerd.Bundle, *task.DeleteResponse) {
			s, b := f.Pod("pod", nil)
			_, err := s.Sandbox().StopSandbox(f.Ctx, &sandbox.StopSandboxRequest{SandboxID: b.ID})
			f.Must(err, "stop")
			exit, err := s.Sandbox().WaitSandbox(f.Ctx, &sandbox.WaitSandboxRequest{SandboxID: b.ID})
			f.Must(err, "wait")
			f.Must(s.Sandbox().Shutdown(f.Ctx, b.ID), "shut down")
			return b, &task.DeleteResponse{
				Pid: uint32(s.Pid), ExitStatus: exit.GetExitStatus(), ExitedAt: exit.GetExitedAt(),
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			podOnly(t) // another shim may answer otherwise, and has no Sandbox API
			f := newFake(t)
			other := f.Bundle("other", nil, "true")
			if _, out, err := f.DeleteCommandIn(other, trace); err != nil || !strings.Contains(out, "init runtime ") {
				t.Fatalf("delete of a bundle without an answer: %v: %q, want the trace of a Go program", err, out)
			}
			f.Remove(other)
			b, want := tt.end(f)
			r, out, err := f.DeleteCommandIn(b, trace)
			if err != nil || out != "" {
				t.Errorf("delete: %v: %q, want no Go program", err, out)
			}
			if !proto.Equal(r, want) || r.GetPid() == 0 || r.GetExitedAt() == nil {
				t.Errorf("delete = %v, want %v", r, want)
			}
			f.Remove(b)
		})
	}
}

// wantAllEnded checks that one delete command has ended all that a killed shim had: no process, mount, cgroup or state
// is left. Then it deletes and removes the bundles.
func wantAllEnded(f *fakecontainerd.Fake, bundles ...*fakecontainerd.Bundle) {
	f.Helper()
	scope := f.Scope()
	scope.Dirs = nil // the socket goes with the delete of the pod
	scope.Check(f)
	for _, b := range bundles {
		_, err := f.DeleteCommand(b)
		f.Must(err, "delete of "+b.ID)
		f.Remove(b)
	}
}

// kill ends the shim without warning and waits for its end.
func kill(f *fakecontainerd.Fake, s *fakecontainerd.Shim) {
	f.Helper()
	f.Must(unix.Kill(s.Pid, unix.SIGKILL), "kill the shim")
	harness.Eventually(f, "the shim ends", func() error {
		if harness.Alive(s.Pid) {
			return errors.New("it lives")
		}
		return nil
	})
}

const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// group starts a shim with a pause container "pod" and members. They have not been through `start`, which containerd 2
// does not call for them.
func group(f *fakecontainerd.Fake, members int) (*fakecontainerd.Shim, []*fakecontainerd.Bundle) {
	f.Helper()
	pod := f.Bundle("pod", annotate(sandboxAnnotation, "pod"), "sleep", "1000")
	s := f.Shim(pod)
	s.Run(pod)
	bundles := []*fakecontainerd.Bundle{pod}
	for i := range members {
		b := f.Bundle(fmt.Sprintf("app%d", i), annotate(sandboxAnnotation, "pod"), "sh", "-c", "sleep 1000 & wait")
		s.Run(b)
		bundles = append(bundles, b)
	}
	return s, bundles
}

// containerd up to 2.3 calls delete for the pause container alone, and leaves the others running (containerd#10727).
func TestDelete_OneCommandEndsAllThatAKilledShimHadInTime(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	for _, containers := range []int{3, 30} {
		t.Run(fmt.Sprint(containers), func(t *testing.T) {
			f := newFake(t)
			s, bundles := group(f, containers)
			kill(f, s)
			began := time.Now()
			r, err := f.DeleteCommand(bundles[0])
			f.Must(err, "delete")
			if took := time.Since(began); took > deleteLimit {
				t.Errorf("delete took %v, containerd allows %v", took, deleteLimit)
			}
			if r.GetExitStatus() != 137 || r.GetPid() == 0 {
				t.Errorf("delete = %v, want pid and status 137", r)
			}
			wantAllEnded(f, bundles...)
		})
	}
}

// podOnly skips a test of the Sandbox API on the runc shim.
func podOnly(t *testing.T) {
	t.Helper()
	harness.OursOnly(t, "the Sandbox API")
}

// joining is a change of a container's specification as CRI makes it for a pod whose sandbox has this pid (containerd
// internal/cri/opts, WithPodNamespaces).
func joining(pid int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Annotations = map[string]string{sandboxAnnotation: "pod"}
		for i, ns := range s.Linux.Namespaces {
			file := map[specs.LinuxNamespaceType]string{
				specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc",
				specs.UTSNamespace: "uts",
			}[ns.Type]
			if file != "" {
				s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", pid, file)
			}
		}
	}
}

// As containerd does after a CreateSandbox that failed.
func TestSandbox_ShimWithoutOneIsShutDown(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	b := f.SandboxBundle("pod")
	f.Must(f.Shim(b).Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
}

func TestDelete_OfAPodWhoseShimLivesLeavesItsContainers(t *testing.T) {
	podOnly(t)
	f := newFake(t)
	s, b := f.Pod("pod", nil)
	c := f.Bundle("app", joining(s.Pid), "sleep", "1000")
	pid := s.Run(c)
	_, err := f.DeleteCommand(b)
	f.Must(err, "delete")
	if !harness.Alive(pid) {
		t.Error("the container died with its sandbox's bundle, although the shim lives")
	}
	f.Remove(b) // as containerd does then
	s.KillAndDelete(c)
	f.Must(s.Sandbox().Shutdown(f.Ctx, "pod"), "shut down")
}

// A containerd that dies, or gives up, between its calls leaves no shim for ever. One that gives up before Create, since
// it cannot write the address down, does not hang up.
func TestShim_EndsByItselfWhenIdle(t *testing.T) {
	podOnly(t)
	for _, tt := range []struct {
		name  string
		stays bool // the client
		reach func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle)
	}{
		{name: "before create", reach: func(*fakecontainerd.Fake, *fakecontainerd.Shim, *fakecontainerd.Bundle) {}},
		{
			name: "before create, when its bundle is gone", stays: true,
			reach: func(f *fakecontainerd.Fake, _ *fakecontainerd.Shim, b *fakecontainerd.Bundle) { f.Remove(b) },
		},
		{name: "before start", reach: func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			f.Must(s.CreateSandbox(b, nil), "create")
		}},
		{name: "when its bundle is gone", reach: func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) {
			f.Must(s.CreateSandbox(b, nil), "create")
			f.Must(s.Sandbox().Start(f.Ctx, "pod"), "start")
			_, err := f.DeleteCommand(b)
			f.Must(err, "delete")
			f.Remove(b)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most wait for 15 s
			f := newFake(t)
			b := f.SandboxBundle("pod")
			s := f.Shim(b)
			tt.reach(f, s, b)
			if !tt.stays {
				f.Must(s.Close(), "hang up")
			}
			limit, cancel := context.WithTimeout(f.Ctx, harness.Slow(25*time.Second))
			defer cancel()
			for harness.Alive(s.Pid) {
				select {
				case <-limit.Done():
					t.Fatal("the shim lives 25 s after nobody needs it any more")
				case <-time.After(100 * time.Millisecond):
				}
			}
			if left := (harness.Scope{Namespace: f.Namespace, MountsIn: filepath.Dir(b.Path)}).Mounts(); len(left) > 0 {
				t.Errorf("mounts left: %v", left)
			}
		})
	}
}

// wantAlive checks that the shim answers and that the first processes of bundles live.
func wantAlive(f *fakecontainerd.Fake, s *fakecontainerd.Shim, bundles ...*fakecontainerd.Bundle) {
	f.Helper()
	for _, b := range bundles {
		state, err := s.State(f.Ctx, &task.StateRequest{ID: b.ID})
		if err != nil {
			f.Errorf("state of %s: %v", b.ID, err)
		} else if !harness.Alive(int(state.GetPid())) {
			f.Errorf("init of %s does not live any more", b.ID)
		}
	}
}

// endAll ends the containers of bundles, those that live still, and then the shim. The first, which is the pod's, goes
// last.
func endAll(f *fakecontainerd.Fake, s *fakecontainerd.Shim, bundles ...*fakecontainerd.Bundle) {
	f.Helper()
	for _, b := range slices.Backward(bundles) {
		_, _ = s.Kill(f.Ctx, &task.KillRequest{ID: b.ID, Signal: 9}) // dead already is as good
		_, err := s.Wait(f.Ctx, &task.WaitRequest{ID: b.ID})
		f.Must(err, "wait for "+b.ID)
		_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID})
		f.Must(err, "delete "+b.ID)
		f.Remove(b)
	}
	s.End()
}

// The delete command asks the shim whether it lives. That it cannot ask says nothing of the shim: neither its own want
// of descriptors or memory, nor the machine's.
func TestDelete_AnyErrorOfPingIsNotDeath(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	for _, passing := range []harness.Fault{
		{Call: "socket", Err: "EMFILE", When: "1..2"},
		{Call: "socket", Err: "ENFILE", When: "1..2"},
		{Call: "socket", Err: "ENOBUFS", When: "1..2"},
		{Call: "connect", Err: "ENOMEM", When: "1..2"},
		{Call: "connect", Err: "EAGAIN", When: "1..2"},
		{Call: "connect", Err: "EPERM", When: "1..2"},
	} {
		t.Run(passing.String(), func(t *testing.T) {
			f := newFake(t)
			s, bundles := group(f, 3)
			f.Faults = harness.Inject(t, passing)
			if _, err := f.DeleteCommand(bundles[0]); err != nil {
				t.Errorf("delete command = %v, want it to try again", err)
			}
			if f.Faults.Hits() == 0 {
				t.Error("no system call failed")
			}
			f.Faults = nil
			wantAlive(f, s, bundles[1:]...) // the one that was asked for ends, as ever
			endAll(f, s, bundles...)
		})
	}
	t.Run("for ever", func(t *testing.T) {
		f := newFake(t)
		s, bundles := group(f, 2)
		f.Faults = harness.Inject(t, harness.Fault{Call: "socket", Err: "ENFILE"})
		_, err := f.DeleteCommand(bundles[0])
		f.WantError(err, nil, "check whether the shim at socket", "neither an answer", "too many open files in system")
		if f.Faults.Hits() < 2 {
			t.Errorf("%d system calls failed, want more than one try", f.Faults.Hits())
		}
		f.Faults = nil
		wantAlive(f, s, bundles...)
		endAll(f, s, bundles...)
	})
}

// The same with a dead shim: once the command can ask, it learns that and ends all.
func TestDelete_TriesAgainUntilItKnowsThatTheShimIsDead(t *testing.T) {
	harness.OursOnly(t, "who cleans up knows all that a shim had")
	f := newFake(t)
	s, bundles := group(f, 2)
	kill(f, s)
	f.Faults = harness.Inject(t, harness.Fault{Call: "socket", Err: "ENFILE", When: "1..3"})
	_, err := f.DeleteCommand(bundles[0])
	f.Must(err, "delete command")
	if f.Faults.Hits() == 0 {
		t.Error("no system call failed")
	}
	f.Faults = nil
	wantAllEnded(f, bundles...)
}

// A connection that cannot be accepted waits: neither the shim nor its containers end because the machine has no memory
// for it, whether the kernel says so of the connection or when it is to be watched.
func TestShim_OutlivesErrorsOfItsListener(t *testing.T) {
	harness.OursOnly(t, "an error of accept4 is no end")
	for _, fault := range []harness.Fault{
		{Call: "accept4", Err: "ENOMEM"},
		{Call: "accept4", Err: "ENOBUFS"},
		{Call: "accept4", Err: "EMFILE"},
		{Call: "accept4", Err: "EPERM"},
		{Call: "epoll_ctl", Err: "ENOSPC"},
	} {
		t.Run(fault.String(), func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c", nil, "sleep", "1000")
			s := f.Shim(b)
			s.Run(b)
			faults := harness.Inject(t, fault)
			detach := faults.Into(s.Pid)
			c := f.Dial(s.Answer.Address, "v3") // the kernel takes it, whatever the shim can do
			waiting := make(chan error, 1)
			go func() { // ends with the answer, or when the shim has hung up
				_, err := c.State(f.Ctx, &task.StateRequest{ID: b.ID})
				waiting <- err
			}()
			if fault.Call == "accept4" {
				faults.WaitHits(3) // it tries again
			} else {
				faults.WaitHits(1) // that of the connection, which is lost
			}
			detach()
			if err := <-waiting; err != nil && fault.Call == "accept4" {
				t.Errorf("state by a connection that waited = %v", err)
			}
			_, err := f.Dial(s.Answer.Address, "v3").State(f.Ctx, &task.StateRequest{ID: b.ID})
			f.Must(err, "state by another connection")
			wantAlive(f, s, b)
			endAll(f, s, b)
		})
	}
}

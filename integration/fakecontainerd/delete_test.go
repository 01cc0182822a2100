// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
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
			f.Must(s.Sandbox().Stop(f.Ctx, b.ID, 0), "stop")
			exit, err := s.Sandbox().Wait(f.Ctx, b.ID)
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

func TestDelete_CommandsOfAPodRunSideBySide(t *testing.T) {
	f := newFake(t)
	pod := f.Bundle("pod", annotate("io.kubernetes.cri.sandbox-id", "pod"), "sleep", "1000")
	s := f.Shim(pod)
	s.Run(pod)
	bundles := []*fakecontainerd.Bundle{pod}
	for i := range 4 {
		b := f.Bundle(fmt.Sprintf("app%d", i), annotate("io.kubernetes.cri.sandbox-id", "pod"), "sleep", "1000")
		_, err := f.Start(b, fakecontainerd.Params, nil)
		f.Must(err, "start for "+b.ID)
		s.Run(b)
		bundles = append(bundles, b, b) // each twice: containerd may ask from two places
	}
	kill(f, s)
	if took := deleteAtOnce(f, bundles); took > deleteLimit {
		t.Errorf("%d deletes at once took %v, containerd allows %v", len(bundles), took, deleteLimit)
	}
}

// deleteAtOnce runs the delete commands of all bundles at once and returns how long that took. Nothing is left of them.
func deleteAtOnce(f *fakecontainerd.Fake, bundles []*fakecontainerd.Bundle) time.Duration {
	f.Helper()
	began := time.Now()
	var all sync.WaitGroup
	for _, b := range bundles {
		all.Go(func() {
			if _, err := f.DeleteCommand(b); err != nil {
				f.Errorf("delete of %s: %v", b.ID, err)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	f.Scope().Check(f)
	for _, b := range bundles {
		f.Remove(b)
	}
	return took
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

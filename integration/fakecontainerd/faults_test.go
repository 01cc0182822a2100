// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

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
			if _, err := f.DeleteCommand(bundles[1]); err != nil {
				t.Errorf("delete command = %v, want it to try again", err)
			}
			if f.Faults.Hits() == 0 {
				t.Error("no system call failed")
			}
			f.Faults = nil
			wantAlive(f, s, bundles[0], bundles[2], bundles[3]) // the one that was asked for ends, as ever
			endAll(f, s, bundles...)
		})
	}
	t.Run("for ever", func(t *testing.T) {
		f := newFake(t)
		s, bundles := group(f, 2)
		f.Faults = harness.Inject(t, harness.Fault{Call: "socket", Err: "ENFILE"})
		_, err := f.DeleteCommand(bundles[1])
		f.WantError(err, nil, "check whether the shim at socket", "neither answers", "too many open files in system")
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
	_, err := f.DeleteCommand(bundles[1])
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

// A signal that cuts a call of the launcher short, as SIGSTOP does, does not make the exec fail.
func TestExec_GoesOnAfterAnInterruptedCall(t *testing.T) {
	harness.OursOnly(t, "starts execs without libcontainer")
	f := newFake(t)
	b := f.Bundle("c", nil, "sleep", "1000")
	s := f.Shim(b)
	s.Run(b)
	for i, fault := range []harness.Fault{
		{Call: "write", Err: "EINTR", When: "1..2"},
		{Call: "openat", Err: "EINTR", When: "1..2"},
		{Call: "keyctl", Err: "EINTR", When: "1"},
		{Call: "waitid", Err: "EINTR", When: "1..2"},
	} {
		t.Run(fault.String(), func(t *testing.T) {
			faults := harness.Inject(t, fault)
			detach := faults.Into(s.Pid)
			id := fmt.Sprintf("x%d", i)
			_, err := s.Exec(f.Ctx, &task.ExecProcessRequest{ID: b.ID, ExecID: id, Spec: f.ProcessSpec(nil, "true")})
			if err == nil {
				_, err = s.Start(f.Ctx, &task.StartRequest{ID: b.ID, ExecID: id})
			}
			detach()
			if err != nil {
				t.Errorf("exec = %v, want it to go on\n%s", err, strings.Join(faults.Injected(), "\n"))
			}
			if faults.Hits() == 0 {
				t.Error("no system call failed")
			}
		})
	}
	endAll(f, s, b)
}

// What a kernel lacks is named with the kernel that has it.
func TestCreate_NamesTheKernelThatAMountNeeds(t *testing.T) {
	harness.OursOnly(t, "names the kernel")
	f := newFake(t)
	b := f.Bundle("c", func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{
			Type: "bind", Source: "/sys", Destination: "/mnt", Options: []string{"rbind", "rro"},
		})
	}, "true")
	s := f.Shim(b)
	faults := harness.Inject(t, harness.Fault{Call: "mount_setattr", Err: "ENOSYS"})
	detach := faults.Into(s.Pid)
	_, err := s.Create(f.Ctx, b.CreateRequest())
	detach()
	if faults.Hits() == 0 {
		t.Error("no system call failed")
	}
	f.WantError(err, errdefs.ErrNotImplemented, "/mnt", "Linux 5.12")
	f.Remove(b)
	s.End()
}

// A kernel before 5.12 is asked once for each of the two uses of mount_setattr, not by each container.
func TestCreate_WithoutMountSetattrIsKnown(t *testing.T) {
	harness.OursOnly(t, "starts containers without libcontainer")
	f := newFake(t)
	b := f.Bundle("c", nil, "sleep", "1000")
	s := f.Shim(b)
	faults := harness.Inject(t, harness.Fault{Call: "mount_setattr", Err: "ENOSYS"})
	detach := faults.Into(s.Pid)
	s.Run(b)
	other := f.Bundle("c2", nil, "sleep", "1000")
	s.Run(other)
	detach()
	if got := faults.Hits(); got != 2 { // for the file systems of a container, and for /dev/null
		t.Errorf("mount_setattr was tried %d times, want twice", got)
	}
	endAll(f, s, b, other)
}

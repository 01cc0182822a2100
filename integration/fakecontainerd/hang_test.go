// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"errors"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// answerLimit is how long State may take while something else hangs: containerd gives it 2 s. The promise is 100 ms;
// the difference is for a busy test machine.
const answerLimit = time.Second

// within runs call and fails the test when it takes longer than answerLimit.
func within(t *testing.T, what string, call func() error) error {
	t.Helper()
	began := time.Now()
	err := call()
	if took := time.Since(began); took > answerLimit {
		t.Errorf("%s took %v, want %v at most", what, took, answerLimit)
	}
	return err
}

const groupKey = "io.containerd.runc.v2.group"

func TestCreate_WhileItHangsTheRestOfThePodIsServed(t *testing.T) {
	harness.OursOnly(t, "all calls answer whatever else hangs")
	f := newFake(t)
	gate := harness.NewGate(f, f.Dir)
	pod := f.Bundle("pod", annotate(groupKey, "pod"), "sleep", "1000")
	app := f.Bundle("app", func(s *specs.Spec) {
		annotate(groupKey, "pod")(s)
		gate.InCreate(s)
	}, "sleep", "1000")
	s := f.Shim(pod)
	s.Run(pod)
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(f.Ctx, app.CreateRequest())
		created <- err
	}()
	gate.WaitReached()

	f.Must(within(t, "State of another container", func() error {
		_, err := s.State(f.Ctx, &task.StateRequest{ID: "pod"})
		return err
	}), "state of pod")
	f.WantError(within(t, "State of the container that is being created", func() error {
		_, err := s.State(f.Ctx, &task.StateRequest{ID: "app"})
		return err
	}), notFound)
	f.WantError(within(t, "Pids of the container that is being created", func() error {
		_, err := s.Pids(f.Ctx, &task.PidsRequest{ID: "app"})
		return err
	}), notFound)
	f.WantError(within(t, "a second Create of it", func() error {
		_, err := s.Create(f.Ctx, app.CreateRequest())
		return err
	}), exists)
	if _, err := s.Shutdown(f.Ctx, &task.ShutdownRequest{ID: "pod"}); err != nil {
		t.Errorf("Shutdown = %v, want nil and no effect", err)
	}
	s.RunExec("pod", "e1", "true")
	gate.Open()
	f.Must(<-created, "create app")
	s.KillAndDelete(app)
	s.KillAndDelete(pod)
	s.End()
}

func TestStart_WhileItHangsTheContainerCanBeKilled(t *testing.T) {
	harness.OursOnly(t, "State and Kill answer whatever else hangs")
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	c, err := s.Create(f.Ctx, b.CreateRequest())
	f.Must(err, "create")
	// Start waits for the created process to take it up, which it does not while it is stopped.
	f.Must(unix.Kill(int(c.GetPid()), unix.SIGSTOP), "stop the process")
	started := make(chan error, 1)
	go func() {
		_, err := s.Start(f.Ctx, &task.StartRequest{ID: "c1"})
		started <- err
	}()
	// Nothing tells when Start is on its way in the shim, so State is asked often enough to meet it there.
	for range 100 {
		f.Must(within(t, "State", func() error {
			_, err := s.State(f.Ctx, &task.StateRequest{ID: "c1"})
			return err
		}), "state")
	}
	f.Must(within(t, "Kill", func() error {
		_, err := s.Kill(f.Ctx, &task.KillRequest{ID: "c1", Signal: 9})
		return err
	}), "kill")
	startErr := <-started
	w, err := s.Wait(f.Ctx, &task.WaitRequest{ID: "c1"})
	f.Must(err, "wait")
	if w.GetExitStatus() != 137 {
		t.Errorf("exit status = %d, want 137", w.GetExitStatus())
	}
	st, err := s.State(f.Ctx, &task.StateRequest{ID: "c1"})
	f.Must(err, "state")
	if st.GetStatus() != tasktypes.Status_STOPPED {
		t.Errorf("status = %v, want stopped", st.GetStatus())
	}
	_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1"})
	f.Must(err, "delete")
	want := "create c1 | start c1 | exit c1 137 | delete c1"
	if startErr != nil {
		want = "create c1 | exit c1 137 | delete c1"
	}
	f.WantEvents("c1", want)
	s.End()
}

func TestDelete_RemovesAContainerWhoseCreateWasCutShort(t *testing.T) {
	harness.OursOnly(t, "a create that is cut short leaves no cgroup")
	f := newFake(t)
	gate := harness.NewGate(f, f.Dir)
	b := f.Bundle("c1", gate.InCreate, "sleep", "1000")
	s := f.Shim(b)
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(f.Ctx, b.CreateRequest())
		created <- err
	}()
	gate.WaitReached()
	kill(f, s)
	if err := <-created; err == nil {
		t.Error("Create of a shim that was killed = nil")
	}
	began := time.Now()
	_, err := f.DeleteCommand(b)
	f.Must(err, "delete")
	if took := time.Since(began); took > deleteLimit {
		t.Errorf("delete took %v, containerd allows %v", took, deleteLimit)
	}
	gate.Open() // the hook was the shim's child and is nobody's now
	f.Scope().Check(t)
	f.Remove(b)
}

// Nothing tells the shim that the client of a call has gone: it finishes the call, or undoes it.
func TestCreate_ClientHangsUpAndTheContainerCanBeDeleted(t *testing.T) {
	harness.OursOnly(t, "a container that is being created is told from one that is not there")
	f := newFake(t)
	gate := harness.NewGate(f, f.Dir)
	b := f.Bundle("c1", gate.InCreate, "sleep", "1000")
	s := f.Shim(b)
	hasty := f.Dial(s.Answer.Address, "v3")
	created := make(chan error, 1)
	go func() {
		_, err := hasty.Create(f.Ctx, b.CreateRequest())
		created <- err
	}()
	gate.WaitReached()
	f.Must(hasty.Close(), "hang up")
	if err := <-created; err == nil {
		t.Error("Create over a connection that was cut = nil, want an error")
	}
	gate.Open()
	harness.Eventually(t, "the container is there, or gone", func() error {
		_, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1"})
		if err == nil || errors.Is(err, notFound) {
			return nil
		}
		return err
	})
	f.Remove(b)
	s.End()
}

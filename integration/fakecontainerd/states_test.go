// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// Short names for the table below; nil is no error.
var (
	ok       error
	notFound = errdefs.ErrNotFound
	refused  = errdefs.ErrFailedPrecondition
	exists   = errdefs.ErrAlreadyExists
)

// operation is one call on container c1, or on its exec e1.
type operation struct {
	name string
	call func(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle) error
}

// operations lists the calls that the state of a container decides about, those first that change nothing when refused.
func operations() []operation {
	type F = *fakecontainerd.Fake
	type S = *fakecontainerd.Shim
	type B = *fakecontainerd.Bundle
	return []operation{
		{"State", func(f F, s S, b B) error { _, err := s.State(f.Ctx, &task.StateRequest{ID: b.ID}); return err }},
		{"Connect", func(f F, s S, b B) error { _, err := s.Connect(f.Ctx, &task.ConnectRequest{ID: b.ID}); return err }},
		{"Pids", func(f F, s S, b B) error { _, err := s.Pids(f.Ctx, &task.PidsRequest{ID: b.ID}); return err }},
		{"Stats", func(f F, s S, b B) error { _, err := s.Stats(f.Ctx, &task.StatsRequest{ID: b.ID}); return err }},
		{"Wait", func(f F, s S, b B) error { _, err := s.Wait(f.Ctx, &task.WaitRequest{ID: b.ID}); return err }},
		{"Update", func(f F, s S, b B) error {
			_, err := s.Update(f.Ctx, &task.UpdateTaskRequest{ID: b.ID, Resources: resources()})
			return err
		}},
		{"ResizePty", func(f F, s S, b B) error {
			_, err := s.ResizePty(f.Ctx, &task.ResizePtyRequest{ID: b.ID, Width: 80, Height: 24})
			return err
		}},
		{"CloseIO", func(f F, s S, b B) error {
			_, err := s.CloseIO(f.Ctx, &task.CloseIORequest{ID: b.ID, Stdin: true})
			return err
		}},
		{"Start", func(f F, s S, b B) error { _, err := s.Start(f.Ctx, &task.StartRequest{ID: b.ID}); return err }},
		{"Pause", func(f F, s S, b B) error { _, err := s.Pause(f.Ctx, &task.PauseRequest{ID: b.ID}); return err }},
		{"Resume", func(f F, s S, b B) error { _, err := s.Resume(f.Ctx, &task.ResumeRequest{ID: b.ID}); return err }},
		{"Create", func(f F, s S, b B) error { _, err := s.Create(f.Ctx, b.CreateRequest()); return err }},
		{"Exec", func(f F, s S, b B) error {
			_, err := s.Exec(f.Ctx,
				&task.ExecProcessRequest{ID: b.ID, ExecID: "e1", Spec: f.ProcessSpec(nil, "sleep", "1000")})
			return err
		}},
		{"Delete", func(f F, s S, b B) error { _, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID}); return err }},
		{"Kill", func(f F, s S, b B) error {
			// A signal that kills nothing, so that the next call finds the same state.
			_, err := s.Kill(f.Ctx, &task.KillRequest{ID: b.ID, Signal: 28})
			return err
		}},
	}
}

func resources() *anypb.Any {
	return &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources",
		Value:   []byte(`{"pids":{"limit":100}}`),
	}
}

// The codes are those that containerd and its CRI plugin branch on.
func TestState_EveryCallIsAnsweredWithItsCode(t *testing.T) {
	harness.OursOnly(t, "a class for every call in a wrong state")
	for _, tt := range []struct {
		state string
		want  map[string]error
	}{
		{"unknown", map[string]error{
			"State": notFound, "Connect": ok, "Pids": notFound, "Stats": notFound, "Wait": notFound, "Update": notFound,
			"ResizePty": notFound,
			"CloseIO":   notFound, "Start": notFound, "Pause": notFound, "Resume": notFound, "Exec": notFound,
			"Delete": notFound, "Kill": notFound,
		}},
		{"created", map[string]error{
			"State": ok, "Connect": ok, "Pids": ok, "Stats": ok, "Update": ok, "ResizePty": refused, "CloseIO": ok,
			"Pause": refused, "Resume": refused, "Create": exists, "Kill": ok,
		}},
		{"running", map[string]error{
			"State": ok, "Connect": ok, "Pids": ok, "Stats": ok, "Update": ok, "ResizePty": refused, "CloseIO": ok,
			"Start": refused, "Resume": refused, "Create": exists, "Delete": refused, "Kill": ok,
		}},
		{"paused", map[string]error{
			"State": ok, "Connect": ok, "Pids": ok, "Stats": ok, "Update": ok, "ResizePty": refused, "CloseIO": ok,
			"Start": refused, "Pause": refused, "Create": exists, "Exec": refused, "Delete": refused, "Kill": ok,
		}},
		{"stopped", map[string]error{
			"State": ok, "Connect": ok, "Pids": ok, "Wait": ok, "Update": refused, "ResizePty": refused, "CloseIO": ok,
			"Start": refused, "Pause": refused, "Resume": refused, "Create": exists, "Exec": refused, "Kill": notFound,
		}},
		{"deleted", map[string]error{ // whoever asks does not know about the deletion
			"State": ok, "Connect": ok, "Pids": notFound, "Stats": notFound, "Wait": notFound, "Update": notFound,
			"ResizePty": notFound,
			"CloseIO":   notFound, "Start": notFound, "Pause": notFound, "Resume": notFound, "Exec": notFound,
			"Delete": ok, "Kill": notFound,
		}},
	} {
		t.Run(tt.state, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", nil, "sleep", "1000")
			s := f.Shim(b)
			reach(f, s, b, tt.state)
			for _, op := range operations() {
				class, asked := tt.want[op.name]
				if !asked {
					continue // legal here, and it would change the state or wait for its end
				}
				err := op.call(f, s, b)
				if class != nil {
					f.WantError(err, class)
				} else if err != nil {
					t.Errorf("%s while %s = %v, want nil", op.name, tt.state, err)
				}
			}
			if tt.state == "paused" {
				_, err := s.Resume(f.Ctx, &task.ResumeRequest{ID: b.ID})
				f.Must(err, "resume")
			}
			switch tt.state {
			case "unknown", "deleted":
			case "stopped":
				_, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID})
				f.Must(err, "delete")
			default:
				s.KillAndDelete(b)
			}
			s.End()
		})
	}
}

// reach brings container c1 into a state.
func reach(f *fakecontainerd.Fake, s *fakecontainerd.Shim, b *fakecontainerd.Bundle, state string) {
	f.Helper()
	switch state {
	case "unknown":
	case "created":
		_, err := s.Create(f.Ctx, b.CreateRequest())
		f.Must(err, "create")
	case "running":
		s.Run(b)
	case "paused":
		s.Run(b)
		_, err := s.Pause(f.Ctx, &task.PauseRequest{ID: b.ID})
		f.Must(err, "pause")
	case "stopped", "deleted":
		s.Run(b)
		_, err := s.Kill(f.Ctx, &task.KillRequest{ID: b.ID, Signal: 9})
		f.Must(err, "kill")
		_, err = s.Wait(f.Ctx, &task.WaitRequest{ID: b.ID})
		f.Must(err, "wait")
		if state == "deleted" {
			_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID})
			f.Must(err, "delete")
		}
	default:
		f.Fatal("no such state: " + state)
	}
}

func TestState_EveryCallOnAnExecIsAnsweredWithItsCode(t *testing.T) {
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	s.Run(b)
	start := func(id string) error {
		_, err := s.Start(f.Ctx, &task.StartRequest{ID: "c1", ExecID: id})
		return err
	}
	kill := func(id string) error {
		_, err := s.Kill(f.Ctx, &task.KillRequest{ID: "c1", ExecID: id, Signal: 9})
		return err
	}
	del := func(id string) error {
		_, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1", ExecID: id})
		return err
	}
	add := func(id string) error {
		_, err := s.Exec(f.Ctx,
			&task.ExecProcessRequest{ID: "c1", ExecID: id, Spec: f.ProcessSpec(nil, "sleep", "1000")})
		return err
	}
	want := func(what string, err, class error) {
		t.Helper()
		switch {
		case class == nil && err != nil:
			t.Errorf("%s = %v, want nil", what, err)
		case class != nil:
			f.WantError(err, class)
		}
	}
	for name, call := range map[string]func(string) error{"start": start, "kill": kill, "delete": del} {
		want(name+" an unknown exec", call("e1"), notFound)
	}
	want("add e1", add("e1"), ok)
	want("add e1 again", add("e1"), exists)
	want("kill e1 before its start", kill("e1"), refused)
	want("start e1", start("e1"), ok)
	if harness.Runtime() == harness.Ours { // Unknown in the runc shim
		want("start e1 again", start("e1"), refused)
		want("delete e1 while it runs", del("e1"), refused)
	}
	want("kill e1", kill("e1"), ok)
	_, err := s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: "e1"})
	f.Must(err, "wait for e1")
	want("kill e1 after its exit", kill("e1"), notFound)
	want("delete e1", del("e1"), ok)
	want("delete e1 again", del("e1"), notFound)

	want("add e2", add("e2"), ok)
	_, err = s.Kill(f.Ctx, &task.KillRequest{ID: "c1", Signal: 9})
	f.Must(err, "kill c1")
	_, err = s.Wait(f.Ctx, &task.WaitRequest{ID: "c1"})
	f.Must(err, "wait for c1")
	want("start e2 after the container's exit", start("e2"), refused)
	_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1"})
	f.Must(err, "delete c1")
	s.End()
}

func TestCall_NumbersOutOfRangeAreRefusedByValue(t *testing.T) {
	harness.OursOnly(t, "errors of a class that name field and value")
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	s.Run(b)
	_, err := s.Kill(f.Ctx, &task.KillRequest{ID: "c1", Signal: 999})
	f.WantError(err, invalid, "999")
	_, err = s.ResizePty(f.Ctx, &task.ResizePtyRequest{ID: "c1", Width: 1 << 20, Height: 1})
	f.WantError(err, invalid, fmt.Sprint(1<<20))
	s.KillAndDelete(b)
	s.End()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v3"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

func TestEvents_CarryWhatContainerdReads(t *testing.T) {
	harness.OursOnly(t, "events arrive in order, and all of them")
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	pid := uint32(s.Run(b))
	s.RunExec("c1", "e1", "sh", "-c", "exit 4")
	w, err := s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: "e1"})
	f.Must(err, "wait for e1")
	e, err := s.State(f.Ctx, &task.StateRequest{ID: "c1", ExecID: "e1"})
	f.Must(err, "state of e1")
	s.KillAndDelete(b)
	f.WantEvents("c1", "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 4 | exit c1 137 | delete c1")
	s.End()
	topics := []string{
		"/tasks/create", "/tasks/start", "/tasks/exec-added", "/tasks/exec-started", "/tasks/exit", "/tasks/exit",
		"/tasks/delete",
	}
	for i, entry := range f.Events.Entries("c1") {
		if entry.Topic != topics[i] {
			t.Errorf("topic %d = %q, want %q", i, entry.Topic, topics[i])
		}
		switch got := entry.Event.(type) {
		case *events.TaskCreate:
			if got.GetBundle() != b.Path || got.GetPid() != pid || len(got.GetRootfs()) != 1 || got.GetIO() == nil {
				t.Errorf("TaskCreate = %v, want bundle, pid %d, a rootfs mount and io", got, pid)
			}
		case *events.TaskStart:
			if got.GetPid() != pid {
				t.Errorf("TaskStart = %v, want pid %d", got, pid)
			}
		case *events.TaskExecStarted:
			if got.GetPid() != e.GetPid() {
				t.Errorf("TaskExecStarted = %v, want pid %d", got, e.GetPid())
			}
		case *events.TaskExit:
			wantPid := pid
			if got.GetID() == "e1" {
				wantPid = e.GetPid()
				if !got.GetExitedAt().AsTime().Equal(w.GetExitedAt().AsTime()) {
					t.Errorf("TaskExit = %v, want the time that Wait said, %v", got, w.GetExitedAt().AsTime())
				}
			}
			if got.GetPid() != wantPid {
				t.Errorf("TaskExit = %v, want pid %d", got, wantPid)
			}
		case *events.TaskDelete:
			if got.GetPid() != pid || got.GetExitStatus() != 137 || got.GetExitedAt().AsTime().IsZero() {
				t.Errorf("TaskDelete = %v, want pid %d, status 137 and a time", got, pid)
			}
		}
	}
}

func TestEvents_WaitForContainerdAndComeInOrder(t *testing.T) {
	harness.OursOnly(t, "events are kept while containerd is away")
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	s.Run(b)
	f.WantEvents("c1", "create c1 | start c1")
	f.SinkDown()
	want := "create c1 | start c1"
	for _, id := range []string{"e1", "e2", "e3", "e4", "e5"} {
		s.RunExec("c1", id, "true")
		_, err := s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: id})
		f.Must(err, "wait for "+id)
		want += " | exec-added " + id + " | exec-start " + id + " | exit " + id
	}
	s.KillAndDelete(b)
	f.SinkUp()
	f.WantEvents("c1", want+" | exit c1 137 | delete c1")
	s.End()
}

// containerd publishes nothing for a container whose Delete was answered: if the shim is killed then, an event that it
// still had is lost.
func TestDelete_IsAnsweredWhenItsEventIsDelivered(t *testing.T) {
	harness.OursOnly(t, "no event is lost with a shim that is killed after its answer")
	f := newFake(t)
	b := f.Bundle("c1", nil, "true")
	s := f.Shim(b)
	s.Run(b)
	_, err := s.Wait(f.Ctx, &task.WaitRequest{ID: b.ID})
	f.Must(err, "wait")
	f.SinkDown()
	answered := make(chan error, 1)
	go func() { // ends with the answer
		_, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID})
		answered <- err
	}()
	f.Must(harness.Poll(func() error {
		dir := filepath.Join(harness.StateRoot(f.Namespace), b.ID)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is there (%w)", dir, err)
		}
		return nil
	}), "the container is removed")
	f.SinkUp()
	f.Must(<-answered, "delete")
	kill(f, s)
	if got, want := f.Events.Text(b.ID), "create c1 | start c1 | exit c1 | delete c1"; got != want {
		t.Errorf("events = %q, want %q", got, want)
	}
	_, err = f.DeleteCommand(b)
	f.Must(err, "delete command")
	f.Remove(b)
}

const groupKey = "io.containerd.runc.v2.group"

// The directory in which the shim was started goes with the bundle of its first container.
func TestShim_OutlivesTheFirstContainerOfItsGroupAndKeepsNothingOfOthers(t *testing.T) {
	f := newFake(t)
	first := f.Bundle("first", annotate(groupKey, "group"), "sleep", "1000")
	s := f.Shim(first)
	s.Run(first)
	add := func(id string) *fakecontainerd.Bundle {
		b := f.Bundle(id, annotate(groupKey, "group"), "sleep", "1000")
		a, err := f.Start(b, fakecontainerd.Params, nil)
		f.Must(err, "start for "+id)
		if a.Address != s.Answer.Address {
			t.Errorf("address for %s = %q, want the group's, %q", id, a.Address, s.Answer.Address)
		}
		s.Run(b)
		s.RunExec(id, "e1", "sleep", "1000") // not deleted by anybody: it goes with its container
		return b
	}
	stays := add("stays")
	s.KillAndDelete(first)
	s.KillAndDelete(add("warm"))
	before, err := harness.ReadUsage(s.Pid)
	f.Must(err, "usage")
	for i := range 15 {
		s.KillAndDelete(add(fmt.Sprintf("app%d", i)))
	}
	harness.CheckUsage(t, s.Pid, before, 5)
	if zombies := harness.Zombies(s.Pid); len(zombies) > 0 {
		t.Errorf("shim has not collected %v", zombies)
	}
	s.KillAndDelete(stays)
	s.End()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"

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

// glutton asks for more memory than little allows, and uses it.
const glutton = "dd if=/dev/zero of=/dev/null bs=128M count=1 2>/dev/null"

func little(s *specs.Spec) {
	limit := int64(24 << 20)
	s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}
}

func TestOOM_KillsAreFewEventsHoweverLongContainerdIsAway(t *testing.T) {
	harness.OursOnly(t, "events are kept while containerd is away")
	const tries = 5
	for range tries {
		if eventsOfKills(t) {
			return
		}
	}
	t.Errorf("the kernel chose init %d times", tries)
}

// eventsOfKills checks what is told of kills while containerd is away. It returns false if the kernel chose init, as it
// may while the memory of the last one that it killed is not free yet.
func eventsOfKills(t *testing.T) bool {
	t.Helper()
	f := newFake(t)
	b := f.Bundle("c1", little, "sh", "-c", "while :; do "+glutton+"; echo $?; done")
	s := f.Shim(b)
	r := b.CreateRequest()
	r.Stdout = "file://" + filepath.Join(f.Dir, "out")
	_, err := s.Create(f.Ctx, r)
	f.Must(err, "create")
	f.WantEvents("", "create c1")
	f.SinkDown()
	_, err = s.Start(f.Ctx, &task.StartRequest{ID: "c1"})
	f.Must(err, "start")

	kills := func() int {
		text, err := os.ReadFile(filepath.Join(f.Dir, "out"))
		f.Must(err, "output")
		return bytes.Count(text, []byte("137\n"))
	}
	wait := func(more int) (lives bool) {
		more += kills()
		harness.Eventually(t, "kills", func() error {
			state, err := s.State(f.Ctx, &task.StateRequest{ID: "c1"})
			f.Must(err, "state")
			lives = state.GetStatus() == tasktypes.Status_RUNNING
			if n := kills(); lives && n < more {
				return fmt.Errorf("%d, want %d", n, more)
			}
			return nil
		})
		return lives
	}
	lives := wait(50)
	if lives {
		s.RunExec("c1", "e1", "sh", "-c", "exit 4")
		_, err = s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: "e1"})
		f.Must(err, "wait for e1")
		lives = wait(50)
		_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1", ExecID: "e1"})
		f.Must(err, "delete e1")
	}
	if !lives {
		f.SinkUp()
		r, err := s.Delete(f.Ctx, &task.DeleteRequest{ID: "c1"})
		f.Must(err, "delete")
		if r.GetExitStatus() != 137 {
			t.Errorf("init ended with %d, want SIGKILL", r.GetExitStatus())
		}
		f.Remove(b)
		s.End()
		t.Log("the kernel chose init")
		return false
	}
	s.KillAndDelete(b)

	f.SinkUp()
	var text string
	f.Must(f.Events.Wait(f.Ctx, "", func(all string) bool { text = all; return strings.HasSuffix(all, "delete c1") }),
		"wait for the last event")
	const want = "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 4 | exit c1 137 | delete c1"
	if rest := strings.ReplaceAll(text, "oom c1 | ", ""); rest != want {
		t.Errorf("events but OOM kills = %q, want %q", rest, want)
	}
	// Start is on its way for as long as nobody takes it, so no kill is.
	if strings.Contains(text, "oom c1 | oom c1") {
		t.Errorf("events = %q, want one for the OOM kills between two others", text)
	}
	for _, part := range []string{"start c1 | oom c1 | ", "oom c1 | exit c1"} {
		if !strings.Contains(text, part) {
			t.Errorf("events = %q, want %q in it", text, part)
		}
	}
	s.End()
	return true
}

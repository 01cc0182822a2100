// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

type noReaper struct{ stdio.Children }

func (noReaper) Suspend() func() { return func() {} }

// world is a shim whose processes are fakes.
type world struct {
	*Group
	t       *testing.T
	accepts bool
	told    string // what the group asked for
}

func newWorld(t *testing.T, most int) *world {
	t.Helper()
	w := &world{t: t, accepts: true}
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	t.Cleanup(func() { testx.Must(t, queue.Close(context.Background())) })
	runtime := &processtest.Runtime{}
	runtime.SetDeaf(func(syscall.Signal) bool { return false })
	w.Group = New(Config{
		Most: most,
		Make: func(string, string) *Unit {
			tasks := task.New(runtime, queue, stdio.NewHost("ns", noReaper{}), nil, settings.Core())
			noPod := func(context.Context, pod.Request) (sandbox.Pod, error) { return nil, errors.New("no pods") }
			return &Unit{Tasks: tasks, Pods: sandbox.New(tasks, noPod)}
		},
		Accepts: func(bootstrap.JoinRequest) bool { return w.accepts },
		Open:    func() { w.told += "open " },
		Close:   func() { w.told += "close " },
		MoveLog: func(bundle string) bool { w.told += "log:" + filepath.Base(bundle) + " "; return true },
	}, "c1", "/b/c1")
	return w
}

func (w *world) join(id, pod string) bool {
	return w.Join(bootstrap.JoinRequest{ID: id, Pod: pod, Bundle: "/b/" + id})
}

// create creates a container and returns the unit that it is in.
func (w *world) create(id string) *Unit {
	w.t.Helper()
	bundle := testx.NewBundle(w.t, &specs.Spec{
		Root: &specs.Root{Path: "rootfs"}, Process: &specs.Process{Args: []string{"true"}, Cwd: "/"}, Linux: &specs.Linux{CgroupsPath: "/c"},
	})
	u, err := w.ToCreate(id, bundle)
	testx.Must(w.t, err)
	_, err = u.Tasks.Create(w.t.Context(), task.CreateRequest{ID: id, Bundle: bundle})
	testx.Must(w.t, err)
	return u
}

// end ends a container, as containerd does.
func (w *world) end(id string) {
	w.t.Helper()
	tasks := w.Of(id).Tasks
	c, err := tasks.Container(id)
	testx.Must(w.t, err)
	testx.Must(w.t, c.Init().Kill(syscall.SIGKILL))
	_, err = c.Init().Wait(w.t.Context())
	testx.Must(w.t, err)
	_, err = tasks.Delete(w.t.Context(), id, "")
	testx.Must(w.t, err)
	w.Shutdown(id)
}

func (w *world) wantEnded(want bool) {
	w.t.Helper()
	select {
	case <-w.Done():
		if !want {
			w.t.Error("the shim has ended")
		}
	default:
		if want {
			w.t.Error("the shim has not ended")
		}
	}
}

func (w *world) wantTold(want string) {
	w.t.Helper()
	if w.told != want {
		w.t.Errorf("the group asked for %q, want %q", w.told, want)
	}
	w.told = ""
}

func TestGroup_OfOneHasAllContainers(t *testing.T) {
	w := newWorld(t, 1)
	for _, id := range []string{"c1", "c2"} {
		if !w.join(id, "some group") || w.create(id) != w.Of("c1") {
			t.Errorf("%s is not in the one unit", id)
		}
	}
	if w.Of("unknown") != w.Of("c1") {
		t.Error("an id that nobody knows has a unit of its own")
	}
	w.end("c1")
	w.wantEnded(false)
	w.end("c2")
	w.wantEnded(true)
	if w.join("c3", "c3") {
		t.Error("a shim that has ended takes a container")
	}
	w.wantTold("")
}

func TestGroup_TakesSoManyUnits(t *testing.T) {
	w := newWorld(t, 3)
	w.create("c1")
	if !w.join("c2", "c2") || !w.join("m", "c2") || w.join("x", "no such pod") || w.join("c1", "c1") {
		t.Error("the wrong ones were taken")
	}
	w.wantTold("")
	if w.create("c2") == w.Of("c1") || w.create("m") != w.Of("c2") {
		t.Error("a container is in the wrong unit")
	}
	w.accepts = false
	if w.join("c3", "c3") {
		t.Error("one that is not right for the shim was taken")
	}
	w.wantTold("close ")
	w.accepts = true
	if !w.join("c3", "c3") {
		t.Error("there is room, and it was not taken")
	}
	w.wantTold("close ")
	if w.join("c4", "c4") {
		t.Error("there is no room, and it was taken")
	}
	w.wantTold("close ")
	w.create("c3")
	w.end("c2") // m is of the same
	w.wantTold("")
	w.end("m")
	w.wantTold("open ")
	w.end("c1")
	w.wantTold("log:c3 open ")
	w.wantEnded(false)
	w.end("c3")
	w.wantEnded(true)
	w.wantTold("close ")
	if _, err := w.ToCreate("late", t.TempDir()); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("create in a shim that has ended: %v", err)
	}
}

// containerd asks for the shutdown of each container that it has deleted, and may ask again.
func TestShutdown_OfOneThatNobodyKnowsEndsNothing(t *testing.T) {
	w := newWorld(t, 3)
	if !w.join("c2", "c2") {
		t.Fatal("c2 was not taken")
	}
	w.Shutdown("deleted long ago")
	if err := w.ShutdownPod(t.Context(), "deleted long ago"); !errdefs.IsNotFound(err) {
		t.Errorf("ShutdownPod = %v", err)
	}
	w.create("c1")
	w.create("c2")
	w.end("c1")
	w.Shutdown("c1")
	w.wantEnded(false)
	w.end("c2")
	w.wantEnded(true)
}

func TestReap_OfUnitsForWhichNobodyComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.create("c1")
		w.join("c2", "c2")
		time.Sleep(joinTimeout)
		w.Reap()
		if w.Of("c2").ID != "c2" {
			t.Error("the unit has ended too early")
		}
		time.Sleep(time.Second)
		w.ShutdownIdle()
		if len(w.All()) != 1 {
			t.Errorf("units: %v, want that of c1 alone", w.All())
		}
		w.end("c1")
		w.wantEnded(true)
	})
}

// With the Sandbox API containerd asks no start for the containers of a pod.
func TestToCreate_InThePodOfTheConfiguration(t *testing.T) {
	w := newWorld(t, 3)
	w.join("p2", "p2")
	for text, want := range map[string]string{
		`{"annotations": {"io.kubernetes.cri.sandbox-id": "p2"}}`:      "p2",
		`{"annotations": {"io.kubernetes.cri.sandbox-id": "another"}}`: "x",
		`{}`: "x",
	} {
		bundle := t.TempDir()
		testx.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(text), 0o600))
		u, err := w.ToCreate("x", bundle)
		testx.Must(t, err)
		if u.ID != want {
			t.Errorf("a container with %s is in the unit %q, want %q", text, u.ID, want)
		}
		delete(w.units, "x")
	}
}

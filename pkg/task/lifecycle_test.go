// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process"
)

// containerd deletes a task whose client no longer waits for its Create, and
// ends the shim only when it is told that there is none.
func TestDelete_CancelsACreate(t *testing.T) {
	engine := newRuntime()
	entered, _ := engine.Hold("create")
	s := newManager(t, engine)
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: testx.NewBundle(t, goodSpec())})
		created <- err
	}()
	<-entered
	_, err := s.Delete(t.Context(), "c1", "")
	testx.WantError(t, err, errdefs.ErrNotFound)
	testx.WantError(t, <-created, context.Canceled)
	s.Shutdown()
	if !testx.Closed(s.Done()) {
		t.Error("Shutdown had no effect although no container is left")
	}
}

// Between the death of all processes and the exit that is told, containerd would take the shim for one that is left
// over.
func TestPIDs_OfADeadContainerAreThatOfInit(t *testing.T) {
	for _, gone := range []bool{false, true} {
		dir := t.TempDir()
		testx.Write(t, filepath.Join(dir, "cgroup.procs"), "")
		testx.Write(t, filepath.Join(dir, "memory.events"), "oom_kill 0\n")
		engine := newRuntime()
		engine.Group = cgroup.New(map[string]string{"": dir})
		c := create(t, newManager(t, engine), "c1", goodSpec())
		if gone {
			testx.Must(t, os.RemoveAll(dir))
		}
		if pids, err := c.PIDs(); err != nil || !slices.Equal(pids, []int{101}) {
			t.Errorf("PIDs = %v, %v, want init alone; the cgroup is gone: %t", pids, err, gone)
		}
	}
	// containerd would delete a container without processes, and one that is not found.
	r := CreateRequest{ID: "c1", Bundle: testx.NewBundle(t, goodSpec()), Checkpoint: "/image"}
	c, err := newManager(t, newRuntime()).Create(t.Context(), r)
	testx.Must(t, err)
	_, err = c.PIDs()
	testx.WantError(t, err, errdefs.ErrFailedPrecondition)
}

func TestShutdown_WaitsForTheLastContainer(t *testing.T) {
	engine := newRuntime()
	entered, open := engine.Hold("create")
	s := newManager(t, engine)
	bundle := testx.NewBundle(t, goodSpec())
	again := CreateRequest{ID: "c1", Bundle: bundle}
	wantNoEffect := func(while string) {
		t.Helper()
		s.Shutdown()
		if testx.Closed(s.Done()) {
			t.Errorf("Shutdown took effect while %s", while)
		}
	}
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(t.Context(), again)
		created <- err
	}()
	<-entered
	// All of this answers while Create hangs.
	_, err := s.Container("c1")
	testx.WantError(t, err, errdefs.ErrNotFound)
	_, err = s.Status("c1", "")
	testx.WantError(t, err, errdefs.ErrNotFound)
	_, err = s.Create(t.Context(), again)
	testx.WantError(t, err, errdefs.ErrAlreadyExists)
	wantNoEffect("a container is being created")
	open()
	testx.Must(t, <-created)

	wantNoEffect("a container exists")
	status, err := s.Delete(t.Context(), "c1", "")
	testx.Must(t, err)
	if status.Exit.Status != 128+int(syscall.SIGKILL) {
		t.Errorf("exit status of an init that was never started = %d, want 137", status.Exit.Status)
	}
	if again, err := s.Delete(t.Context(), "c1", ""); err != nil || again.Exit != status.Exit || again.Pid != status.Pid {
		t.Errorf("Delete = %+v, the second %+v (%v), want the same", status, again, err)
	}
	s.Shutdown()
	s.Shutdown() // again does nothing
	testx.Within(t, "Shutdown", s.Done())
	_, err = s.Create(t.Context(), again)
	testx.WantError(t, err, errdefs.ErrUnavailable)
}

func TestShutdown_AgainstCreate(t *testing.T) {
	for range 100 {
		s := newManager(t, newRuntime())
		var both sync.WaitGroup
		var refused atomic.Bool
		both.Go(func() {
			_, err := s.Create(context.Background(), CreateRequest{ID: "c1", Bundle: "/nowhere"})
			refused.Store(errdefs.IsUnavailable(err))
		})
		both.Go(func() { s.Shutdown() })
		both.Wait()
		if refused.Load() && !testx.Closed(s.Done()) {
			t.Fatal("Create was refused, and Shutdown did not take effect")
		}
	}
}

func TestCreate_OneOfManyWins(t *testing.T) {
	var destroyed, won atomic.Int32
	engine := newRuntime()
	engine.Do("destroy", func(process.Config) error { destroyed.Add(1); return nil })
	s := newManager(t, engine)
	bundle := testx.NewBundle(t, goodSpec())
	atOnce := func(call func()) {
		var all sync.WaitGroup
		for range 20 {
			all.Go(call)
		}
		all.Wait()
	}
	atOnce(func() {
		if _, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tmpfs()}); err == nil {
			won.Add(1)
		} else if !errdefs.IsAlreadyExists(err) {
			t.Errorf("error of one that lost: %v", err)
		}
	})
	if got := won.Load(); got != 1 {
		t.Errorf("%d Creates succeeded, want 1", got)
	}
	if got := testx.MountsBelow(t, bundle); len(got) != 1 {
		t.Errorf("mounts = %v, want one", got)
	}
	atOnce(func() {
		if _, err := s.Delete(t.Context(), "c1", ""); err != nil {
			t.Errorf("Delete = %v", err)
		}
	})
	if got := destroyed.Load(); got != 1 {
		t.Errorf("the container was destroyed %d times, want once", got)
	}
}

// panics calls f, whose panic the interceptor of calls would catch.
func panics(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("the panic was lost")
		}
	}()
	f()
}

// A container of which there is only a part must not keep its id, nor the shim from its end. Nor must one that is gone
// when its answer is written.
func TestPanic_LeavesNoContainer(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	buggy := newRuntime()
	buggy.Panic("create")
	inCreate := newManager(t, buggy)
	panics(t, func() { _, _ = inCreate.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle}) })
	inDelete := newManager(t, newRuntime())
	inDelete.KeepIndex("c1", bundle, "/the/socket", func(int, process.Exit) ([]byte, error) { panic("a bug") })
	create(t, inDelete, "c1", goodSpec())
	panics(t, func() { _, _ = inDelete.Delete(t.Context(), "c1", "") })
	for what, m := range map[string]*Manager{"Create": inCreate, "Delete": inDelete} {
		if c, err := m.Container("c1"); !errdefs.IsNotFound(err) || !m.Shutdown() {
			t.Errorf("after %s: Container = %v, %v, want not found and a shim that ends", what, c, err)
		}
	}
}

func TestDelete_CanBeTriedAgain(t *testing.T) {
	broken := errors.New("broken")
	engine := newRuntime()
	engine.Fail("destroy", broken)
	s := newManager(t, engine)
	bundle := testx.NewBundle(t, goodSpec())
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tmpfs()})
	testx.Must(t, err)
	_, err = s.Delete(t.Context(), "c1", "")
	testx.WantError(t, err, broken)
	s.Shutdown()
	if testx.Closed(s.Done()) {
		t.Error("Shutdown took effect though Delete had failed")
	}
	engine.Fail("destroy", nil)
	remove(t, s, "c1") // a mount that is left fails the test
}

// The delete command takes the answer as a proof that nothing is left. Delete may wait for its event after that: if the
// shim is killed then, the answer has the exit.
func TestDelete_LeavesItsAnswerLast(t *testing.T) {
	home, bundle := testx.NewBundle(t, goodSpec()), testx.NewBundle(t, goodSpec())
	index, answer := filepath.Join(home, "shim.json"), filepath.Join(bundle, "shim.json")
	isAnswer := func() bool {
		text, err := os.ReadFile(answer)
		return err == nil && bytes.Contains(text, []byte{0})
	}
	s := newManagerTelling(t, newRuntime(), func(e event.Event) {
		if _, ok := e.(event.TaskDelete); ok {
			if !isAnswer() {
				t.Error("when the delete is told there is no answer")
			}
		}
	})
	s.KeepIndex("home", home, "/the/socket", func(int, process.Exit) ([]byte, error) { return []byte("answer"), nil })
	testx.Must(t, os.WriteFile(answer, []byte("\x00of a container that had this bundle before"), 0o600))
	for id, bundle := range map[string]string{"home": home, "c1": bundle} {
		_, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle})
		testx.Must(t, err)
	}
	wantNoAnswer := func(when string) {
		t.Helper()
		if isAnswer() {
			t.Errorf("%s: there is an answer", when)
		}
	}
	wantNoAnswer("after Create")
	testx.Must(t, os.Rename(index, index+".kept"))
	testx.Must(t, os.MkdirAll(filepath.Join(index, "in the way"), 0o700))
	if _, err := s.Delete(t.Context(), "c1", ""); err == nil {
		t.Error("Delete succeeded though the list of containers cannot be written")
	}
	wantNoAnswer("after a Delete that failed")
	testx.Must(t, os.RemoveAll(index))
	remove(t, s, "c1")
	if got, err := os.ReadFile(answer); string(got) != "\x00answer" {
		t.Errorf("%s = %q, %v, want the answer, and no socket of a shim that goes on", answer, got, err)
	}
}

func TestRootfs_Mounts(t *testing.T) {
	source := t.TempDir()
	testx.Write(t, filepath.Join(source, "marker"), "")
	bind := mount.Mount{Type: "bind", Source: source, Options: []string{"rbind", "ro"}}
	for name, tc := range map[string]struct {
		mounts []mount.Mount
		busy   bool // somebody else's shell stands in the root file system
	}{
		"none":             {},
		"a bind mount":     {mounts: []mount.Mount{bind}},
		"one on the other": {mounts: append(tmpfs(), bind)},
		"one that is busy": {mounts: append(tmpfs(), bind), busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := testx.NewBundle(t, goodSpec())
			rootfs := filepath.Join(bundle, rootfsDir)
			engine := newRuntime()
			engine.Do("create", func(process.Config) error {
				if there := testx.Exists(filepath.Join(rootfs, "marker")); there != (len(tc.mounts) > 0) {
					t.Errorf("at the engine's Create the file is there: %t", there)
				}
				return nil
			})
			s := newManager(t, engine)
			_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tc.mounts})
			testx.Must(t, err)
			if got := testx.MountsBelow(t, bundle); len(got) != len(tc.mounts) {
				t.Errorf("mounts = %v, want %d", got, len(tc.mounts))
			}
			if tc.busy {
				cmd := exec.Command("/bin/cat")
				cmd.Dir = rootfs
				stdin, err := cmd.StdinPipe()
				testx.Must(t, err)
				testx.Must(t, cmd.Start())
				defer func() { _ = stdin.Close(); testx.Must(t, cmd.Wait()) }()
			}
			remove(t, s, "c1")
			if left := testx.MountsBelow(t, bundle); len(left) > 0 {
				t.Errorf("mounts left: %v", left)
			}
			if !testx.Exists(filepath.Join(source, "marker")) {
				t.Error("the source was touched")
			}
		})
	}
}

// A client need not leave the mounting to the shim.
func TestRootfs_OfTheClientStays(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	rootfs := filepath.Join(bundle, rootfsDir)
	testx.Must(t, unix.Mount("tmpfs", rootfs, "tmpfs", 0, ""))
	defer func() { testx.Must(t, unix.Unmount(rootfs, 0)) }()
	s := newManager(t, newRuntime())
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
	testx.Must(t, err)
	remove(t, s, "c1")
	if mounts := testx.MountsBelow(t, bundle); len(mounts) != 1 {
		t.Errorf("mounts = %v, want that of the client", mounts)
	}
}

// A shim that lives for long does not remember all that it ever had, and forgets a container when its id is used again,
// even if that fails.
func TestDelete_IsRememberedForTheLastContainers(t *testing.T) {
	engine := newRuntime()
	s := newManager(t, engine)
	bundle := testx.NewBundle(t, goodSpec())
	for i := range keptDeleted + 1 {
		create(t, s, fmt.Sprint("c", i), goodSpec())
		remove(t, s, fmt.Sprint("c", i))
	}
	create(t, s, "c2", goodSpec())
	for id, want := range map[string]process.State{"c1": process.Deleted, "c2": process.Created} {
		if status, err := s.Status(id, ""); err != nil || status.State != want {
			t.Errorf("status of %s = %v (%v), want %v", id, status.State, err, want)
		}
	}
	broken := errors.New("no container")
	engine.Fail("create", broken)
	_, err := s.Create(t.Context(), CreateRequest{ID: "c3", Bundle: bundle})
	testx.WantError(t, err, broken)
	for _, id := range []string{"c0", "c3"} {
		_, err := s.Status(id, "")
		testx.WantError(t, err, errdefs.ErrNotFound)
		_, err = s.Delete(t.Context(), id, "")
		testx.WantError(t, err, errdefs.ErrNotFound)
	}
}

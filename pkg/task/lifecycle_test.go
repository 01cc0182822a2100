// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
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

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process"
)

// containerd deletes a task whose client no longer waits for its Create, and
// ends the shim only when it is told that there is none.
func TestDelete_CancelsACreate(t *testing.T) {
	engine := &fakeEngine{entered: make(chan string, 1), gate: make(chan struct{})}
	s := newManager(t, engine)
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, goodSpec())})
		created <- err
	}()
	<-engine.entered
	if _, err := s.Delete(t.Context(), "c1", ""); !errdefs.IsNotFound(err) {
		t.Errorf("Delete of a container being created = %v, want not found", err)
	}
	if err := <-created; !errors.Is(err, context.Canceled) {
		t.Errorf("Create = %v, want that it was cancelled", err)
	}
	s.Shutdown()
	if !isClosed(s.Done()) {
		t.Error("Shutdown had no effect although no container is left")
	}
}

// Between the death of all processes and the exit that is told, containerd would take the shim for one that is left
// over.
func TestPIDs_OfADeadContainerAreThatOfInit(t *testing.T) {
	for _, tc := range []struct {
		name     string
		gone     bool // the cgroup
		restored string
		pid      int
	}{
		{name: "none in the cgroup", pid: 4321},
		{name: "a scope that is gone", gone: true, pid: 4321},
		{name: "to be restored", restored: "/image"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), nil, 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "memory.events"), []byte("oom_kill 0\n"), 0o600))
			s := newManager(t, &fakeEngine{cgroup: dir})
			r := CreateRequest{ID: "c1", Bundle: newBundle(t, goodSpec()), Checkpoint: tc.restored}
			c, err := s.Create(t.Context(), r)
			must(t, err)
			if tc.gone {
				must(t, os.RemoveAll(dir))
			}
			pids, err := c.PIDs()
			if tc.restored != "" { // containerd would delete one without processes, and one that is not found
				if !errors.Is(err, errdefs.ErrFailedPrecondition) {
					t.Errorf("PIDs = %v, %v, want a failed precondition", pids, err)
				}
				return
			}
			must(t, err)
			if !slices.Equal(pids, []int{tc.pid}) {
				t.Errorf("PIDs = %v, want %d", pids, tc.pid)
			}
		})
	}
}

func TestShutdown_WaitsForTheLastContainer(t *testing.T) {
	engine := &fakeEngine{entered: make(chan string, 1), gate: make(chan struct{})}
	s := newManager(t, engine)
	bundle := newBundle(t, goodSpec())
	created := make(chan struct{})
	go func() {
		defer close(created)
		if _, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle}); err != nil {
			t.Error(err)
		}
	}()
	<-engine.entered
	// All of this answers while Create hangs.
	for what, err := range map[string]error{
		"Container": func() error { _, err := s.Container("c1"); return err }(),
		"Status":    func() error { _, err := s.Status("c1", ""); return err }(),
	} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("%s while the container is being created = %v, want not found", what, err)
		}
	}
	if _, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, goodSpec())}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Create of an id that is being created = %v, want already exists", err)
	}
	s.Shutdown()
	if isClosed(s.Done()) {
		t.Error("Shutdown took effect while a container is being created")
	}
	close(engine.gate)
	within(t, "Create", created)

	s.Shutdown()
	if isClosed(s.Done()) {
		t.Error("Shutdown took effect while a container exists")
	}
	status, err := s.Delete(t.Context(), "c1", "")
	must(t, err)
	if status.Exit.Status != 128+int(syscall.SIGKILL) {
		t.Errorf("exit status of an init that was never started = %d, want 137", status.Exit.Status)
	}
	if again, err := s.Delete(t.Context(), "c1", ""); err != nil || again.Exit != status.Exit || again.Pid != status.Pid {
		t.Errorf("Delete = %+v, the second %+v (%v), want the same", status, again, err)
	}
	s.Shutdown()
	s.Shutdown() // again does nothing
	within(t, "Shutdown", s.Done())
	if _, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle}); !errdefs.IsUnavailable(err) {
		t.Errorf("Create after Shutdown = %v, want unavailable", err)
	}
}

func TestShutdown_AgainstCreate(t *testing.T) {
	for range 100 {
		s := newManager(t, &fakeEngine{create: func(process.Config) error { return errors.New("only the order matters") }})
		var both sync.WaitGroup
		var refused atomic.Bool
		both.Go(func() {
			_, err := s.Create(context.Background(), CreateRequest{ID: "c1", Bundle: "/nowhere"})
			refused.Store(errdefs.IsUnavailable(err))
		})
		both.Go(func() { s.Shutdown() })
		both.Wait()
		if refused.Load() && !isClosed(s.Done()) {
			t.Fatal("Create was refused, and Shutdown did not take effect")
		}
	}
}

func TestCreate_OneOfManyWins(t *testing.T) {
	var destroyed atomic.Int32
	s := newManager(t, &fakeEngine{destroy: func() error { destroyed.Add(1); return nil }})
	bundle := newBundle(t, goodSpec())
	count := func(call func() error, others func(error) bool) (won int) {
		errs := make([]error, 20)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = call() })
		}
		all.Wait()
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case !others(err):
				t.Errorf("error of one that lost: %v", err)
			}
		}
		return won
	}
	if got := count(func() error {
		_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tmpfs()})
		return err
	}, errdefs.IsAlreadyExists); got != 1 {
		t.Errorf("%d Creates succeeded, want 1", got)
	}
	if got := mountsBelow(t, bundle); len(got) != 1 {
		t.Errorf("mounts = %v, want one", got)
	}
	nobody := func(error) bool { return false }
	count(func() error { _, err := s.Delete(t.Context(), "c1", ""); return err }, nobody)
	if got := destroyed.Load(); got != 1 {
		t.Errorf("the container was destroyed %d times, want once", got)
	}
}

func TestCreate_ManyAtOnce(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	_, err := s.Create(t.Context(), CreateRequest{ID: "keep", Bundle: newBundle(t, goodSpec())})
	must(t, err)
	var all sync.WaitGroup
	for i := range 20 {
		id, bundle := fmt.Sprintf("c%d", i), newBundle(t, goodSpec())
		all.Go(func() {
			for range 5 {
				if _, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle}); err != nil {
					t.Error(err)
				}
				if _, err := s.Container(id); err != nil {
					t.Error(err)
				}
				if _, err := s.Delete(t.Context(), id, ""); err != nil {
					t.Error(err)
				}
				s.Shutdown() // one is left, so it has no effect
			}
		})
	}
	all.Wait()
	if isClosed(s.Done()) {
		t.Error("Shutdown took effect while a container exists")
	}
	_, err = s.Delete(t.Context(), "keep", "")
	must(t, err)
}

func TestDelete_CanBeTriedAgain(t *testing.T) {
	broken := errors.New("broken")
	engine := &fakeEngine{destroy: func() error { return broken }}
	s := newManager(t, engine)
	bundle := newBundle(t, goodSpec())
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tmpfs()})
	must(t, err)
	if _, err := s.Delete(t.Context(), "c1", ""); !errors.Is(err, broken) {
		t.Errorf("Delete = %v, want %v", err, broken)
	}
	s.Shutdown()
	if isClosed(s.Done()) {
		t.Error("Shutdown took effect though Delete had failed")
	}
	engine.destroy = nil
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
	if left := mountsBelow(t, bundle); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

// The delete command takes the answer as a proof that nothing is left. Delete may wait for its event after that: if the
// shim is killed then, the answer has the exit.
func TestDelete_LeavesItsAnswerLast(t *testing.T) {
	home, bundle := newBundle(t, goodSpec()), newBundle(t, goodSpec())
	index, answer := filepath.Join(home, "shim.pod.json"), filepath.Join(bundle, "shim.deleted")
	s := newManagerTelling(t, &fakeEngine{}, func(e event.Event) {
		if _, ok := e.(event.TaskDelete); ok {
			if _, err := os.Lstat(answer); err != nil {
				t.Errorf("when the delete is told: %v, want the answer", err)
			}
		}
	})
	s.KeepIndex(home, "/the/socket", func(int, process.Exit) ([]byte, error) { return []byte("answer"), nil })
	must(t, os.WriteFile(answer, []byte("\x00of a container that had this bundle before"), 0o600))
	for id, bundle := range map[string]string{"home": home, "c1": bundle} {
		_, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: bundle})
		must(t, err)
	}
	wantNoAnswer := func(when string) {
		t.Helper()
		if _, err := os.Lstat(answer); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want no answer", when, err)
		}
	}
	wantNoAnswer("after Create")
	must(t, os.Rename(index, index+".kept"))
	must(t, os.MkdirAll(filepath.Join(index, "in the way"), 0o700))
	if _, err := s.Delete(t.Context(), "c1", ""); err == nil {
		t.Error("Delete succeeded though the list of containers cannot be written")
	}
	wantNoAnswer("after a Delete that failed")
	must(t, os.RemoveAll(index))
	_, err := s.Delete(t.Context(), "c1", "")
	must(t, err)
	if got, err := os.ReadFile(answer); string(got) != "\x00answer" {
		t.Errorf("%s = %q, %v, want the answer, and no socket of a shim that goes on", answer, got, err)
	}
}

// The container is gone when its answer is written. It must not keep the shim from its end.
func TestDelete_PanicAfterItLeavesNoContainer(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	bundle := newBundle(t, goodSpec())
	s.KeepIndex(bundle, "/the/socket", func(int, process.Exit) ([]byte, error) { panic("a bug") })
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
	must(t, err)
	func() {
		defer func() {
			if p := recover(); p == nil {
				t.Error("the panic was lost")
			}
		}()
		_, _ = s.Delete(t.Context(), "c1", "")
	}()
	if c, err := s.Container("c1"); !errdefs.IsNotFound(err) || !s.Shutdown() {
		t.Errorf("Container = %v, %v, want not found and a shim that ends", c, err)
	}
}

func TestRootfs_Mounts(t *testing.T) {
	source := t.TempDir()
	must(t, os.WriteFile(filepath.Join(source, "marker"), nil, 0o600))
	for _, tc := range []struct {
		name   string
		mounts []mount.Mount
		want   int
	}{
		{"none", nil, 0},
		{"a bind mount", []mount.Mount{{Type: "bind", Source: source, Options: []string{"rbind", "ro"}}}, 1},
		{"one on the other", append(tmpfs(), mount.Mount{Type: "bind", Source: source, Options: []string{"bind"}}), 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := newBundle(t, goodSpec())
			marker := filepath.Join(bundle, rootfsDir, "marker")
			engine := &fakeEngine{create: func(process.Config) error {
				if _, err := os.Stat(marker); tc.want > 0 && err != nil {
					t.Errorf("at the engine's Create: %v", err)
				}
				return nil
			}}
			s := newManager(t, engine)
			_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tc.mounts})
			must(t, err)
			if got := mountsBelow(t, bundle); len(got) != tc.want {
				t.Errorf("mounts = %v, want %d", got, tc.want)
			}
			_, err = s.Delete(t.Context(), "c1", "")
			must(t, err)
			if left := mountsBelow(t, bundle); len(left) > 0 {
				t.Errorf("mounts left: %v", left)
			}
			if _, err := os.Stat(filepath.Join(source, "marker")); err != nil {
				t.Errorf("the source was touched: %v", err)
			}
		})
	}
}

// A client need not leave the mounting to the shim.
func TestRootfs_OfTheClientStays(t *testing.T) {
	bundle := newBundle(t, goodSpec())
	rootfs := filepath.Join(bundle, rootfsDir)
	must(t, unix.Mount("tmpfs", rootfs, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(rootfs, 0)) }()
	s := newManager(t, &fakeEngine{})
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
	must(t, err)
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
	if mounts := mountsBelow(t, bundle); len(mounts) != 1 {
		t.Errorf("mounts = %v, want that of the client", mounts)
	}
}

// Somebody else's shell stands in the root file system.
func TestRootfs_IsDetachedWhileBusy(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	bundle := newBundle(t, goodSpec())
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: tmpfs()})
	must(t, err)
	cmd := exec.Command("/bin/cat")
	cmd.Dir = filepath.Join(bundle, rootfsDir)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = stdin.Close(); must(t, cmd.Wait()) }()
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
	if left := mountsBelow(t, bundle); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

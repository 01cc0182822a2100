// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// What is in a bundle.
const (
	specFile  = "config.json"
	rootfsDir = "rootfs"
)

// fakeRuntime makes containers without a kernel.
type fakeRuntime struct {
	destroy func() error              // nil: succeeds
	entered chan string               // not nil: Create says that it begins, and
	gate    chan struct{}             // waits for this, as does Restore
	ended   chan bool                 // for which a Restore waits that is ended; it says whether that came too late
	deaf    func(syscall.Signal) bool // what no init dies of; nil: it does of all

	mu      sync.Mutex
	made    []process.Config
	signals []syscall.Signal
}

func deafTo(signals ...syscall.Signal) func(syscall.Signal) bool {
	return func(sig syscall.Signal) bool { return slices.Contains(signals, sig) }
}

func (e *fakeRuntime) Create(ctx context.Context, c process.Config, _ *stdio.Streams) (process.RuntimeContainer, error) {
	if e.entered != nil {
		e.entered <- c.ID
		select {
		case <-e.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	e.mu.Lock()
	e.made = append(e.made, c)
	e.mu.Unlock()
	return &fakeContainer{engine: e, init: &fakeInit{engine: e, died: make(chan int, 1)}, live: c.Checkpoint == ""}, nil
}

// fakeContainer has what the tests here call; anything else is a nil call.
type fakeContainer struct {
	process.RuntimeContainer
	engine *fakeRuntime
	init   *fakeInit
	live   bool // init is there
}

func (r *fakeContainer) Init() process.Handle                { return r.init }
func (r *fakeContainer) Start() error                        { return nil }
func (r *fakeContainer) KillRemaining(context.Context) error { return nil }
func (r *fakeContainer) Restore(ctx context.Context, _ *stdio.Streams) (process.Handle, error) {
	if r.engine.entered != nil {
		r.engine.entered <- "restore"
		select {
		case <-r.engine.gate:
		case <-ctx.Done():
			if late := <-r.engine.ended; !late {
				return nil, ctx.Err()
			}
		}
	}
	r.live = true
	return r.init, nil
}

func (r *fakeContainer) Cgroup() *cgroup.Cgroup { return cgroup.New(nil) }
func (r *fakeContainer) Discard() error         { return r.Destroy() }

func (r *fakeContainer) Destroy() error {
	if r.live && !r.init.waited.Load() {
		return errors.New("init lives")
	}
	if r.engine.destroy != nil {
		return r.engine.destroy()
	}
	return nil
}

type fakeInit struct {
	engine *fakeRuntime
	died   chan int
	once   sync.Once
	waited atomic.Bool
}

func (h *fakeInit) Pid() int { return 4321 }

func (h *fakeInit) Wait() process.Exit {
	defer h.waited.Store(true)
	return process.Exit{Status: <-h.died, At: time.Now()}
}

func (h *fakeInit) Signal(sig syscall.Signal) error {
	h.engine.mu.Lock()
	h.engine.signals = append(h.engine.signals, sig)
	deaf := h.engine.deaf
	h.engine.mu.Unlock()
	if deaf == nil || !deaf(sig) {
		h.once.Do(func() { h.died <- 128 + int(sig) })
	}
	return nil
}

// newTasks is a registry whose events go to told, in a goroutine of its own.
func newTasks(t *testing.T, e *fakeRuntime, told func(event.Event)) *task.Manager {
	t.Helper()
	queue := event.NewQueue(func(_ context.Context, ev event.Event, _ time.Time) error { told(ev); return nil })
	t.Cleanup(func() { must(t, queue.Close(context.Background())) })
	tasks := task.New(e, queue, stdio.NewHost("ns", noReaper{}))
	tasks.KeepIndex("/nowhere", "/the/socket", nil)
	return tasks
}

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: rootfsDir},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// newBundle is a bundle as containerd makes it.
func newBundle(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	bundle := filepath.Join(t.TempDir(), "bundle")
	must(t, os.MkdirAll(filepath.Join(bundle, rootfsDir), 0o700))
	if spec != nil {
		data, err := json.Marshal(spec)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(bundle, specFile), data, 0o600))
	}
	return bundle
}

// files lists what is in a bundle.
func files(t *testing.T, bundle string) string {
	t.Helper()
	entries, err := os.ReadDir(bundle)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not come within 10 s", what)
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}

func wantInvalid(t *testing.T, err error, text ...string) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("error = %v, want an invalid argument", err)
	}
	wantText(t, err, text...)
}

// noReaper is for a process that reaps no orphans.
type noReaper struct{ stdio.Children }

func (noReaper) Suspend() (resume func()) { return func() {} }

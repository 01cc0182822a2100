// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/extension/hostrootfs"
	"sandbox.internal/shim/pkg/extension/initproc"
	"sandbox.internal/shim/pkg/extension/listen"
	"sandbox.internal/shim/pkg/extension/notify"
	"sandbox.internal/shim/pkg/extension/pidfile"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "pkg/task: the tests mount file systems and need root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fakeEngine makes containers without a kernel.
type fakeEngine struct {
	create  func(process.Config) error // nil: succeeds
	update  func() error               // as above
	destroy func() error               // as above
	cgroup  string                     // of every container, on cgroup v2
	pid     int                        // of every init; 0 for one that is nobody's
	entered chan string                // not nil: Create says that it begins, and
	gate    chan struct{}              // waits for this
	deaf    func(syscall.Signal) bool  // what no init dies of; nil: it does of all

	mu       sync.Mutex
	made     []process.Config
	runtimes []*fakeRuntime
	kept     []string // cpusets
	signals  []syscall.Signal
}

func (e *fakeEngine) Create(ctx context.Context, c process.Config, _ *stdio.Streams) (process.RuntimeContainer, error) {
	if e.entered != nil {
		e.entered <- c.ID
		select {
		case <-e.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if e.create != nil {
		if err := e.create(c); err != nil {
			return nil, err
		}
	}
	r := &fakeRuntime{engine: e, init: &fakeHandle{engine: e, died: make(chan int, 1)}, live: c.Checkpoint == ""}
	e.mu.Lock()
	e.made, e.runtimes = append(e.made, c), append(e.runtimes, r)
	e.mu.Unlock()
	return r, nil
}

// fakeRuntime has what the tests here call; anything else is a nil call.
type fakeRuntime struct {
	process.RuntimeContainer
	engine *fakeEngine
	init   *fakeHandle
	live   bool           // init is there
	thawed syscall.Signal // the last that was sent before the first Resume
}

func (r *fakeRuntime) Init() process.Handle                { return r.init }
func (r *fakeRuntime) Start() error                        { return nil }
func (r *fakeRuntime) Pause() error                        { return nil }
func (r *fakeRuntime) KillRemaining(context.Context) error { return nil }
func (r *fakeRuntime) Launch() inspect.Launch              { return inspect.Launch{Init: inspect.ByLauncher} }

func (r *fakeRuntime) Resume() error {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if n := len(r.engine.signals); n > 0 && r.thawed == 0 {
		r.thawed = r.engine.signals[n-1]
	}
	return nil
}

func (r *fakeRuntime) Cgroup() *cgroup.Cgroup {
	if r.engine.cgroup == "" {
		return cgroup.New(nil)
	}
	return cgroup.New(map[string]string{"": r.engine.cgroup})
}

func (r *fakeRuntime) Update(*specs.LinuxResources) error {
	if r.engine.update != nil {
		return r.engine.update()
	}
	return nil
}

func (r *fakeRuntime) KeepCPUSet(_ context.Context, cpus, mems string) error {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	r.engine.kept = append(r.engine.kept, cpus+"/"+mems)
	return nil
}

func (r *fakeRuntime) Restore(context.Context, *stdio.Streams) (process.Handle, error) {
	r.live = true
	return r.init, nil
}

func (r *fakeRuntime) Exec(context.Context, *specs.Process, *limit.Limits, *stdio.Streams) (process.Handle, process.ExecCgroup, error) {
	return &fakeHandle{engine: r.engine, died: make(chan int, 1)}, nil, nil
}

func (r *fakeRuntime) Destroy() error {
	if r.live && !r.init.waited.Load() {
		return errors.New("init lives")
	}
	if r.engine.destroy != nil {
		return r.engine.destroy()
	}
	return nil
}

func (r *fakeRuntime) Discard() error { return r.Destroy() }

type fakeHandle struct {
	engine *fakeEngine
	died   chan int
	once   sync.Once
	waited atomic.Bool
}

func (h *fakeHandle) Pid() int {
	if h.engine.pid != 0 {
		return h.engine.pid
	}
	return 4321
}

func (h *fakeHandle) Wait() process.Exit {
	defer h.waited.Store(true)
	return process.Exit{Status: <-h.died, At: time.Now()}
}

func (h *fakeHandle) Signal(sig syscall.Signal) error {
	h.engine.mu.Lock()
	h.engine.signals = append(h.engine.signals, sig)
	h.engine.mu.Unlock()
	if h.engine.deaf == nil || !h.engine.deaf(sig) {
		h.once.Do(func() { h.died <- 128 + int(sig) })
	}
	return nil
}

// extensions are all that there are.
var extensions = extension.List{
	initproc.Extension(), hostrootfs.Extension(), notify.Extension(), listen.Extension(), pidfile.Extension(),
}

func newManager(t *testing.T, e *fakeEngine) *Manager {
	t.Helper()
	return newManagerTelling(t, e, func(event.Event) {})
}

// newManagerTelling is a sandbox whose events go to told, in a goroutine of its own.
func newManagerTelling(t *testing.T, e *fakeEngine, told func(event.Event)) *Manager {
	t.Helper()
	queue := event.NewQueue(func(_ context.Context, ev event.Event, _ time.Time) error { told(ev); return nil })
	t.Cleanup(func() { must(t, queue.Close(context.Background())) })
	return New(e, queue, stdio.NewHost("ns", noReaper{}), extensions...)
}

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// annotated is goodSpec with annotations: pairs of a name without the prefix and a value.
func annotated(pairs ...string) *specs.Spec {
	spec := goodSpec()
	spec.Annotations = map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		spec.Annotations[settings.Prefix+pair[0]] = pair[1]
	}
	return spec
}

// allowing are the options, and all annotations are allowed.
func allowing(o options.Options) options.Options {
	o.AllowUnsafeAnnotations = extensions.Settings().Unsafe()
	return o
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
	t.Cleanup(func() {
		for _, m := range mountsBelow(t, bundle) {
			t.Errorf("mount %s is left", m)
			_ = unix.Unmount(m, unix.MNT_DETACH) // reported above
		}
	})
	return bundle
}

// files lists what is in a bundle.
func files(t *testing.T, bundle string) string {
	t.Helper()
	entries, err := os.ReadDir(bundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var found []string
	for line := range strings.Lines(string(data)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	return found
}

func tmpfs() []mount.Mount { return []mount.Mount{{Type: "tmpfs", Source: "tmpfs"}} }

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

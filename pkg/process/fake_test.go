// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// fake is an engine and the runtime of its one container. Its processes die
// when the test says so, and a gate holds a call up until it is opened.
type fake struct {
	ownsPIDs bool
	group    *cgroup.Cgroup
	gates    map[string]chan struct{}
	failing  map[string]error
	deaf     bool           // Exec and Restore do not end with their context
	panics   string         // the call that does
	account  cgroup.Account // of each exec with limits
	entered  chan string    // a gated call has begun

	mu      sync.Mutex
	init    *fakeProcess
	execs   []*fakeProcess
	frozen  bool
	nextPid int
}

func newFake() *fake {
	return &fake{
		ownsPIDs: true, group: cgroup.New(nil), gates: map[string]chan struct{}{}, failing: map[string]error{},
		entered: make(chan string, 16), nextPid: 100,
	}
}

func (f *fake) pass(call string) error { return f.passWith(context.Background(), call) }

// passWith is pass for a call that ends with ctx.
func (f *fake) passWith(ctx context.Context, call string) error {
	if f.deaf {
		ctx = context.Background()
	}
	if gate, ok := f.gates[call]; ok {
		f.entered <- call
		select {
		case <-gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if call == f.panics {
		panic("panic of " + call)
	}
	return f.failing[call]
}

func (f *fake) process() *fakeProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextPid++
	return &fakeProcess{pid: f.nextPid, died: make(chan int, 1), reaped: make(chan struct{})}
}

func (f *fake) Create(_ context.Context, c Config, _ *stdio.Streams) (RuntimeContainer, error) {
	if err := f.pass("create"); err != nil {
		return nil, err
	}
	if c.Checkpoint == "" {
		f.init = f.process()
	}
	return f, nil
}

func (f *fake) Restore(ctx context.Context, _ *stdio.Streams) (Handle, error) {
	if err := f.passWith(ctx, "restore"); err != nil {
		return nil, err
	}
	f.init = f.process()
	return f.init, nil
}

func (f *fake) Checkpoint(r CheckpointRequest) error {
	if err := f.pass("checkpoint"); err != nil {
		return err
	}
	if r.Exit {
		f.init.die(128 + int(syscall.SIGKILL))
	}
	return nil
}

func (f *fake) Init() Handle                                     { return f.init }
func (f *fake) Start() error                                     { return f.pass("start") }
func (f *fake) AwaitProgram()                                    { _ = f.pass("await program") }
func (f *fake) Update(*specs.LinuxResources) error               { return f.pass("update") }
func (f *fake) Cgroup() *cgroup.Cgroup                           { return f.group }
func (f *fake) KeepCPUSet(context.Context, string, string) error { return nil }
func (f *fake) Launch() inspect.Launch                           { return inspect.Launch{Init: inspect.ByLauncher} }
func (f *fake) Destroy() error                                   { return f.pass("destroy") }
func (f *fake) Discard() error                                   { return f.pass("destroy") }

func (f *fake) KillRemaining(ctx context.Context) error {
	if f.ownsPIDs {
		return nil
	}
	return f.group.Kill(ctx, syscall.SIGKILL)
}

func (f *fake) Exec(ctx context.Context, _ *specs.Process, l *limit.Limits, _ *stdio.Streams) (Handle, ExecCgroup, error) {
	if err := f.passWith(ctx, "exec"); err != nil {
		return nil, nil, err
	}
	p := f.process()
	f.mu.Lock()
	f.execs = append(f.execs, p)
	f.mu.Unlock()
	if l != nil {
		return p, fakeCgroup{f}, nil
	}
	return p, nil, nil
}

// fakeCgroup is that of an exec with limits.
type fakeCgroup struct{ fake *fake }

func (c fakeCgroup) Cgroup() *cgroup.Cgroup  { return c.fake.group }
func (c fakeCgroup) Account() cgroup.Account { return c.fake.account }
func (fakeCgroup) Usage() Usage              { return Usage{} }
func (fakeCgroup) Release()                  {}

func (f *fake) Pause() error  { return f.freeze("pause", true) }
func (f *fake) Resume() error { return f.freeze("resume", false) }

func (f *fake) freeze(call string, frozen bool) error {
	if err := f.pass(call); err != nil {
		return err
	}
	f.mu.Lock()
	f.frozen = frozen
	f.mu.Unlock()
	if dir := f.group.Path("freezer"); dir != "" {
		return os.WriteFile(filepath.Join(dir, freezerState), []byte(map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]), 0o600)
	}
	return nil
}

// freezerState is the file of a cgroup that a kill thaws.
const freezerState = "freezer.state"

type fakeProcess struct {
	pid    int
	died   chan int
	reaped chan struct{}
	once   sync.Once

	mu    sync.Mutex
	heard []syscall.Signal // guarded by mu
}

func (p *fakeProcess) Pid() int       { return p.pid }
func (p *fakeProcess) die(status int) { p.once.Do(func() { p.died <- status }) }
func (p *fakeProcess) Wait() Exit {
	defer close(p.reaped)
	exit := Exit{Status: <-p.died, At: time.Now()}
	if exit.Status > 128 {
		exit.Signal = syscall.Signal(exit.Status - 128)
	}
	return exit
}

func (p *fakeProcess) dead() bool {
	select {
	case <-p.reaped:
		return true
	default:
		return false
	}
}

func (p *fakeProcess) Signal(sig syscall.Signal) error {
	if p.dead() {
		return errdefs.ErrNotFound
	}
	p.mu.Lock()
	p.heard = append(p.heard, sig)
	p.mu.Unlock()
	if sig == syscall.SIGKILL {
		p.die(128 + int(sig))
	}
	return nil
}

// journal is a publisher that keeps what it is sent, as text.
type journal struct {
	mu     sync.Mutex
	log    []string
	answer func() error // to a delete; nil takes it
}

func (j *journal) publish(_ context.Context, e event.Event, _ time.Time) error {
	j.mu.Lock()
	answer := j.answer
	j.mu.Unlock()
	if _, isDelete := e.(event.TaskDelete); isDelete && answer != nil {
		if err := answer(); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log = append(j.log, describe(e))
	return nil
}

// answerDelete sets what is answered to a delete from now on.
func (j *journal) answerDelete(f func() error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.answer = f
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.log, " | ")
}

func describe(e event.Event) string {
	switch e := e.(type) {
	case event.TaskCreate:
		return "create " + e.ContainerID
	case event.TaskStart:
		return "start " + e.ContainerID
	case event.TaskExit:
		return fmt.Sprintf("exit %s %d", e.ID, e.Status)
	case event.TaskDelete:
		return "delete " + e.ID
	case event.TaskExecAdded:
		return "exec-added " + e.ExecID
	case event.TaskExecStarted:
		return "exec-started " + e.ExecID
	case event.TaskCheckpointed:
		return "checkpointed " + e.Checkpoint
	case event.TaskPaused:
		return "paused"
	case event.TaskResumed:
		return "resumed"
	}
	return fmt.Sprintf("%T", e)
}

// world is a container over a fake runtime, with its journal. It is its own hook.
type world struct {
	NoHook
	*Container
	fake      *fake
	journal   *journal
	queue     *event.Queue
	pids      []int  // of init, as Created was told
	exits     []Exit // of init, as Exited was told
	removed   int    // how often Removed was called
	removeErr error
}

func (w *world) Created(_ context.Context, _ RuntimeContainer, init Handle) error {
	w.pids = append(w.pids, init.Pid())
	return nil
}

func (w *world) Exited(exit Exit) { w.exits = append(w.exits, exit) }

func (w *world) Removed() error {
	w.removed++
	return w.removeErr
}

// newWorld is called inside a synctest bubble.
func newWorld(t *testing.T, f *fake) *world {
	t.Helper()
	return newWorldOf(t, f, Config{ID: "c1", Bundle: "/b"})
}

func newWorldOf(t *testing.T, f *fake, config Config) *world {
	t.Helper()
	w := &world{fake: f, journal: &journal{}}
	w.queue = event.NewQueue(w.journal.publish)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.queue.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	config.Hooks = append(config.Hooks, w)
	c, err := New(t.Context(), f, w.queue, config)
	if err != nil {
		t.Fatal(err)
	}
	w.Container = c
	return w
}

func (w *world) addExec(t *testing.T, execID string) *Process {
	t.Helper()
	if err := w.AddExec(execID, &specs.Process{}, stdio.Config{}); err != nil {
		t.Fatal(err)
	}
	p, err := w.Process(execID)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantClass(t *testing.T, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("error = %v, want one of class %v", err, class)
	}
}

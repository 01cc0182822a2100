// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package processtest has an implementation of process.Runtime for tests. Its processes need no kernel: they die of a
// signal, or when a test says so. A test makes the calls of the runtime fail, panic or wait by their names: create,
// restore, start, exec, pause, resume, update, checkpoint, signal and destroy, which is Discard too.
package processtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/poll"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// The lasting goroutine of pkg/poll must not begin in a bubble of synctest, which would wait for its end.
var _, _ = poll.Once(-1, nil)

// Runtime implements process.Runtime. Its exported fields are set before it is used.
type Runtime struct {
	Group      *cgroup.Cgroup // of all containers; nil: they have none
	PID        int            // of all processes; 0: 101 and so on
	Account    cgroup.Account // of all execs with limits
	SharesPIDs bool           // KillRemaining kills the processes of Group
	Stubborn   bool           // calls that wait do not end with their contexts

	mu sync.Mutex
	// +checklocks:mu
	calls map[string]*call
	// +checklocks:mu
	deaf func(syscall.Signal) bool
	// +checklocks:mu
	containers []*Container
	// +checklocks:mu
	signals []syscall.Signal
	// +checklocks:mu
	processes int
	// +checklocks:mu
	former []*Process // of containers that were saved
}

// call is the behaviour of a call of a name.
type call struct {
	gate    chan struct{}
	entered chan struct{}
	do      func(process.Config) error
}

// +checklocks:r.mu
func (r *Runtime) callLocked(name string) *call {
	if r.calls == nil {
		r.calls = map[string]*call{}
	}
	if r.calls[name] == nil {
		r.calls[name] = &call{}
	}
	return r.calls[name]
}

// Do lets a call do f first, and fail with its error. f gets the configuration of the container. A nil f does nothing.
func (r *Runtime) Do(name string, f func(process.Config) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callLocked(name).do = f
}

// Fail lets a call fail, or succeed again if err is nil.
func (r *Runtime) Fail(name string, err error) {
	r.Do(name, func(process.Config) error { return err })
}

// Panic lets a call panic.
func (r *Runtime) Panic(name string) {
	r.Do(name, func(process.Config) error { panic("a bug in " + name) })
}

// Hold lets a call wait until open is called, or its context ends. Each call sends on entered when it begins to wait.
func (r *Runtime) Hold(name string) (entered <-chan struct{}, open func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.callLocked(name)
	c.gate, c.entered = make(chan struct{}), make(chan struct{}, 16)
	return c.entered, sync.OnceFunc(func() { close(c.gate) })
}

func (r *Runtime) begin(ctx context.Context, name string, config process.Config) error {
	r.mu.Lock()
	c := *r.callLocked(name)
	r.mu.Unlock()
	if r.Stubborn {
		ctx = context.Background()
	}
	if c.gate != nil {
		c.entered <- struct{}{}
		select {
		case <-c.gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.mu.Lock()
	do := r.callLocked(name).do
	r.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(config)
}

// SetDeaf sets of which signals no process dies. Without, it is all but SIGKILL.
func (r *Runtime) SetDeaf(deaf func(syscall.Signal) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaf = deaf
}

// Containers returns all containers that were created.
func (r *Runtime) Containers() []*Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Container(nil), r.containers...)
}

// Signals returns the signals that were sent to all processes.
func (r *Runtime) Signals() []syscall.Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]syscall.Signal(nil), r.signals...)
}

// Create implements process.Runtime.
func (r *Runtime) Create(ctx context.Context, c process.Config, _ *stdio.Streams) (process.RuntimeContainer, error) {
	if err := r.begin(ctx, "create", c); err != nil {
		return nil, err
	}
	made := &Container{Config: c, runtime: r}
	if c.Checkpoint == "" {
		made.init = r.newProcess(c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers = append(r.containers, made)
	return made, nil
}

func (r *Runtime) newProcess(c process.Config) *Process {
	r.mu.Lock()
	r.processes++
	pid := 100 + r.processes
	r.mu.Unlock()
	if r.PID != 0 {
		pid = r.PID
	}
	return &Process{runtime: r, config: c, pid: pid, died: make(chan int, 1), reaped: make(chan struct{})}
}

// Container implements process.RuntimeContainer.
type Container struct {
	Config  process.Config
	runtime *Runtime

	mu sync.Mutex
	// +checklocks:mu
	init *Process
	// +checklocks:mu
	execs []*Process
	// +checklocks:mu
	specs []*specs.Process
	// +checklocks:mu
	frozen bool
	// +checklocks:mu
	kept []string
	// +checklocks:mu
	updated *specs.LinuxResources
}

// First returns init, or nil before it is restored.
func (c *Container) First() *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.init
}

// Execs returns the execs that were started, and their configurations.
func (c *Container) Execs() ([]*Process, []*specs.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.execs, c.specs
}

// Frozen reports whether the container is frozen.
func (c *Container) Frozen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frozen
}

// SetFrozen freezes or thaws the container beside Pause and Resume.
func (c *Container) SetFrozen(frozen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = frozen
}

func (c *Container) begin(name string) error {
	return c.runtime.begin(context.Background(), name, c.Config)
}

// Init implements process.RuntimeContainer.
func (c *Container) Init() process.Handle { return c.First() }

// Restore implements process.RuntimeContainer.
func (c *Container) Restore(ctx context.Context, _ *stdio.Streams) (process.Handle, error) {
	if err := c.runtime.begin(ctx, "restore", c.Config); err != nil {
		return nil, err
	}
	p := c.runtime.newProcess(c.Config)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.init = p
	return p, nil
}

// Start implements process.RuntimeContainer.
func (c *Container) Start() error { return c.begin("start") }

// Exec implements process.RuntimeContainer.
func (c *Container) Exec(
	ctx context.Context, spec *specs.Process, l *limit.Limits, _ *stdio.Streams,
) (process.Handle, process.ExecCgroup, error) {
	if err := c.runtime.begin(ctx, "exec", c.Config); err != nil {
		return nil, nil, err
	}
	p := c.runtime.newProcess(c.Config)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.execs, c.specs = append(c.execs, p), append(c.specs, spec)
	if l == nil {
		return p, nil, nil
	}
	return p, execCgroup{c}, nil
}

// execCgroup implements process.ExecCgroup with the cgroup of the container.
type execCgroup struct{ *Container }

func (e execCgroup) Account() cgroup.Account { return e.runtime.Account }
func (execCgroup) Release()                  {}

// Pause implements process.RuntimeContainer. It writes FreezerState on v1.
func (c *Container) Pause() error { return c.freeze("pause", "FROZEN") }

// Resume implements process.RuntimeContainer, as Pause does.
func (c *Container) Resume() error { return c.freeze("resume", "THAWED") }

// FreezerState is the file of a cgroup that a kill thaws, on v1.
const FreezerState = "freezer.state"

func (c *Container) freeze(name, state string) error {
	if err := c.begin(name); err != nil {
		return err
	}
	c.SetFrozen(state == "FROZEN")
	if dir := c.Cgroup().Path("freezer"); dir != "" && !c.Cgroup().Unified() {
		return os.WriteFile(filepath.Join(dir, FreezerState), []byte(state), 0o600)
	}
	return nil
}

// Update implements process.RuntimeContainer.
func (c *Container) Update(r *specs.LinuxResources) error {
	c.mu.Lock()
	c.updated = r
	c.mu.Unlock()
	return c.begin("update")
}

// Written returns the argument of the last Update, and those of KeepCPUSet, as "cpus/mems".
func (c *Container) Written() (updated *specs.LinuxResources, kept []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.updated, c.kept
}

// KeepCPUSet implements process.RuntimeContainer.
func (c *Container) KeepCPUSet(_ context.Context, cpus, mems string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, cpus+"/"+mems)
	return nil
}

// Checkpoint implements process.RuntimeContainer.
func (c *Container) Checkpoint(r process.CheckpointRequest) error {
	err := c.begin("checkpoint")
	if err == nil && r.Exit {
		c.First().Die(128 + int(syscall.SIGKILL))
	}
	return err
}

// Cgroup implements process.RuntimeContainer.
func (c *Container) Cgroup() *cgroup.Cgroup {
	if c.runtime.Group == nil {
		return cgroup.New(nil)
	}
	return c.runtime.Group
}

// Launch implements process.RuntimeContainer.
func (c *Container) Launch() inspect.Launch { return inspect.Launch{Init: inspect.ByLauncher} }

// KillRemaining implements process.RuntimeContainer.
func (c *Container) KillRemaining(ctx context.Context) error {
	if !c.runtime.SharesPIDs {
		return nil
	}
	return c.Cgroup().Kill(ctx)
}

// Destroy implements process.RuntimeContainer. It fails if init has not exited.
func (c *Container) Destroy() error {
	if init := c.First(); init != nil && !init.Reaped() {
		return errors.New("init lives")
	}
	return c.begin("destroy")
}

// Discard implements process.RuntimeContainer.
func (c *Container) Discard() error { return c.Destroy() }

// Process implements process.Handle.
type Process struct {
	runtime *Runtime
	config  process.Config
	pid     int
	once    sync.Once
	died    chan int
	reaped  chan struct{} // closed by Wait
}

// Die ends the process, unless it has ended.
func (p *Process) Die(status int) { p.once.Do(func() { p.died <- status }) }

// Reaped reports whether Wait has returned.
func (p *Process) Reaped() bool {
	select {
	case <-p.reaped:
		return true
	default:
		return false
	}
}

// Pid implements process.Handle.
func (p *Process) Pid() int { return p.pid }

// OnEnd implements process.Handle. Wait waits.
func (p *Process) OnEnd(f func()) { go f() }

// Wait implements process.Handle.
func (p *Process) Wait() process.Exit {
	defer close(p.reaped)
	exit := process.Exit{Status: <-p.died, At: time.Now()}
	if exit.Status > 128 {
		exit.Signal = syscall.Signal(exit.Status - 128)
	}
	return exit
}

// Signal implements process.Handle.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.runtime.begin(context.Background(), "signal", p.config); err != nil {
		return err
	}
	if p.Reaped() {
		return errdefs.ErrNotFound
	}
	p.runtime.mu.Lock()
	p.runtime.signals = append(p.runtime.signals, sig)
	deaf := p.runtime.deaf
	p.runtime.mu.Unlock()
	if deaf == nil && sig == syscall.SIGKILL || deaf != nil && !deaf(sig) {
		p.Die(128 + int(sig))
	}
	return nil
}

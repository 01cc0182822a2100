// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// Container is one container: its init and its execs.
type Container struct {
	config  Config
	runtime RuntimeContainer
	events  *event.Queue
	oom     *cgroup.OOMWatch // set once, with mu held
	init    *Process

	// starts is held by each exec while it is started. A freeze excludes them: an exec that joined a frozen cgroup would
	// hang in the middle of its set-up. It is closed when init has exited.
	starts *gate
	// exits is held by each exec from just before it starts until its exit is published. Init's exit waits until it is
	// empty (P3). It is closed when init is killed or has exited: no exec starts any more (P4).
	exits *gate

	execsStarted atomic.Uint64
	checkpointed atomic.Bool // a Checkpoint that ends all processes is under way, or has succeeded

	mu sync.Mutex
	// +checklocks:mu
	publishesOOMs bool // init's start or exit was published, or is about to be
	// +checklocks:mu
	pendingOOM bool // an OOM kill came before
	// +checklocks:mu
	execs map[string]*Process
	// +checklocks:mu
	deleted bool // no exec can be added
	// +checklocks:mu
	verdicts []limit.Verdict // the most recent ones
}

// New has runtime create a container, and publishes the event. If it fails, nothing is left of the container.
func New(ctx context.Context, runtime Runtime, events *event.Queue, config Config) (*Container, error) {
	c := &Container{
		config: config, events: events, execs: map[string]*Process{}, starts: newGate(), exits: newGate(),
	}
	c.init = newProcess(c, "", nil, config.IO, nil)
	if err := c.create(ctx, runtime); err != nil {
		undone := Undo(func() error { return c.removeHooks(errors.Is(err, ErrLeft)) })
		return nil, fmt.Errorf("container %q: %w", config.ID, errors.Join(err, undone))
	}
	pid, io := c.init.Pid(), config.IO
	events.Put(event.TaskCreate{
		ContainerID: config.ID, Bundle: config.Bundle, Rootfs: config.Mounts, Checkpoint: config.Checkpoint, Pid: pid,
		Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Terminal: io.Terminal,
	})
	if pid != 0 {
		c.init.startWaiter()
	}
	return c, nil
}

// create has the runtime create the container, including its init unless Start restores that. If it fails, the hooks
// are still to be undone.
func (c *Container) create(ctx context.Context, runtime Runtime) (err error) {
	for _, h := range c.config.Hooks {
		if err := h.Prepare(ctx, &c.config); err != nil {
			return err
		}
	}
	if c.Restored() {
		c.runtime, err = runtime.Create(ctx, c.config, nil)
		return err
	}
	streams, err := stdio.Open(ctx, c.init.io, c.config.IOOwner)
	if err != nil {
		return err
	}
	if c.runtime, err = runtime.Create(ctx, c.config, streams); err != nil {
		_ = streams.Close() // nothing was written to them
		return err
	}
	init := c.runtime.Init()
	if err := c.initCreated(ctx, init); err != nil {
		_ = streams.Close() // their output does not matter any more
		c.beforeDestroy()
		undone := UndoCreate(func() error { return c.runtime.Discard() })
		return errors.Join(err, undone)
	}
	c.init.handle, c.init.streams = init, streams
	return nil
}

// initCreated runs the hooks for init, which has not been announced yet. If it fails, init has exited.
func (c *Container) initCreated(ctx context.Context, init Handle) (err error) {
	defer func() {
		if err != nil {
			_ = init.Signal(syscall.SIGKILL) // it may be dead already
			init.Wait()
		}
	}()
	for _, h := range c.config.Hooks {
		if err := h.Created(ctx, c.runtime, init); err != nil {
			return err
		}
	}
	if ctx.Err() != nil && !c.Restored() { // hooks need not look; a restored init runs already
		return fmt.Errorf("create: %w", context.Cause(ctx))
	}
	// The watch begins before init can run its program, so that no kill is missed.
	watch, err := c.runtime.Cgroup().WatchOOM(c.oomKilled)
	if err != nil {
		return fmt.Errorf("watch for OOM kills: %w", err)
	}
	c.mu.Lock()
	c.oom = watch
	c.mu.Unlock()
	return nil
}

func (c *Container) beforeDestroy() {
	if c.config.CPUSet != nil {
		c.config.CPUSet.BeforeDestroy()
	}
}

// removeHooks undoes all hooks, even if some of them fail, except the first, which stays while something else is left.
func (c *Container) removeHooks(somethingLeft bool) error {
	var errs []error
	for i, h := range slices.Backward(c.config.Hooks) {
		if err := errors.Join(errs...); i == 0 && (somethingLeft || err != nil) {
			return err
		}
		errs = append(errs, h.Removed())
	}
	return errors.Join(errs...)
}

// oomKilled publishes an OOM kill, or leaves it to publishOOMs if the start event is not published yet.
func (c *Container) oomKilled() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.publishesOOMs {
		c.pendingOOM = true
		return
	}
	c.events.Put(event.TaskOOM{ContainerID: c.ID()})
}

// publishOOMs publishes one event for the OOM kills so far, and has each further one published. It is called after the
// start of init is published, or just before its exit is.
func (c *Container) publishOOMs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publishesOOMs = true
	if c.pendingOOM {
		c.pendingOOM = false
		c.events.Put(event.TaskOOM{ContainerID: c.ID()})
	}
}

// ID returns the container id.
func (c *Container) ID() string { return c.config.ID }

// Init returns the container's first process.
func (c *Container) Init() *Process { return c.init }

// Restored reports whether init comes from a checkpoint.
func (c *Container) Restored() bool { return c.config.Checkpoint != "" }

// Cgroup returns the cgroup of the container's processes.
func (c *Container) Cgroup() *cgroup.Cgroup { return c.runtime.Cgroup() }

// Process returns init if execID is empty, and otherwise that exec or errdefs.ErrNotFound.
func (c *Container) Process(execID string) (*Process, error) {
	if execID == "" {
		return c.init, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.execs[execID]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, errdefs.ErrNotFound)
}

// AddExec registers an exec; Process.Start runs it. Variables of its environment may lower the limits of execs, and are
// removed.
func (c *Container) AddExec(execID string, spec *specs.Process, io stdio.Config) error {
	if err := c.init.check(OpExec); err != nil {
		return err
	}
	limits, env, err := c.config.ExecLimits.FromEnv(spec.Env)
	if err != nil {
		return fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, err)
	}
	own := *spec
	own.Env = env
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted { // since the check
		return fmt.Errorf("container %q: exec: already deleted: %w", c.ID(), errdefs.ErrNotFound)
	}
	if _, ok := c.execs[execID]; ok {
		return fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, errdefs.ErrAlreadyExists)
	}
	io.KeepUnread = unreadTimeout
	c.execs[execID] = newProcess(c, execID, &own, io, limits)
	c.events.Put(event.TaskExecAdded{ContainerID: c.ID(), ExecID: execID})
	return nil
}

// Execs returns a map from the pid of each live exec to its id.
func (c *Container) Execs() map[int]string {
	pids := map[int]string{}
	for _, p := range c.processes() {
		if s := p.Status(); p != c.init && s.Pid != 0 && s.State != Stopped {
			pids[s.Pid] = s.ID
		}
	}
	return pids
}

// Owners returns the processes of execs, as a map from the pid to the exec's id, and the first processes of the
// container and of its execs. For an exec with a cgroup of its own it has all processes, otherwise only the first.
func (c *Container) Owners() (execs map[int]string, first map[int]bool) {
	execs, first = c.Execs(), map[int]bool{}
	for pid := range execs {
		first[pid] = true
	}
	if s := c.init.Status(); s.Pid != 0 && s.State != Stopped {
		first[s.Pid] = true
	}
	for _, p := range c.processes() {
		if group := p.execCgroup(); group != nil {
			pids, _ := group.Cgroup().Procs() // it may be gone
			for _, pid := range pids {
				execs[pid] = p.execID
			}
		}
	}
	return execs, first
}

// KillAll sends sig to every process of the container. After SIGKILL it waits until no process is left in the cgroup,
// for remainingTimeout at most.
func (c *Container) KillAll(ctx context.Context, sig syscall.Signal) (err error) {
	if c.init.Pid() == 0 {
		return c.init.Kill(sig) // it may be being restored
	}
	if err := c.init.check(OpKill); err != nil {
		return err
	}
	group := c.runtime.Cgroup()
	inCgroup := group.Exists()
	if sig == syscall.SIGKILL || !inCgroup {
		// Init may have been moved to another cgroup, or is in none, as when rootless.
		if err = c.init.Kill(sig); errdefs.IsNotFound(err) {
			err = nil
		}
	}
	if !inCgroup {
		return err
	}
	var groupErr error
	if sig == syscall.SIGKILL {
		groupErr = c.killGroup(ctx, group)
	} else {
		c.runtime.AwaitProgram() // the signal is meant for the program
		groupErr = c.signalGroup(ctx, group, sig)
	}
	if groupErr != nil {
		groupErr = c.init.wrap(fmt.Errorf("kill all with signal %d: %w", sig, groupErr))
	}
	return errors.Join(groupErr, err)
}

// killGroup kills all processes in the container's cgroup. It is no error if a process in uninterruptible sleep
// remains: its exit will tell when it has ended.
func (c *Container) killGroup(ctx context.Context, group *cgroup.Cgroup) error {
	bounded, cancel := context.WithTimeout(ctx, remainingTimeout)
	defer cancel()
	err := group.Kill(bounded, syscall.SIGKILL)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		logger(c.ID()).WithError(err).Warn("all processes were killed, but some do not end")
		return nil
	}
	return err
}

// signalGroup sends a signal other than SIGKILL to all processes in the container's cgroup. It freezes and thaws the
// cgroup, unless a Pause or a Checkpoint is under way, or the start of an exec: these wait for signalGroup, which does
// not wait for them.
func (c *Container) signalGroup(ctx context.Context, group *cgroup.Cgroup, sig syscall.Signal) error {
	if !c.starts.tryExclude() {
		return group.Signal(sig)
	}
	defer c.starts.readmit()
	return group.Kill(ctx, sig)
}

func logger(containerID string) *log.Entry { return log.L.WithField("container", containerID) }

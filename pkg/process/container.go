// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/stdio"
)

// Container is one container: its init and its execs.
type Container struct {
	config  Config
	runtime RuntimeContainer
	events  *event.Queue
	oom     *cgroup.OOMWatch // set once, with mu held
	init    *Process

	starts *gate // held by an exec while it is started; excluded by a freeze; closed when init has exited
	exits  *gate // held by an exec from its start to its exit; closed when init is killed or has exited

	execsStarted atomic.Uint64
	frozen       *frozen // while the container is: see Freeze

	unpause func() // ends the use of the container by its pause; guarded by the operation lock of init

	checkpointed atomic.Bool // a Checkpoint that ends all processes is under way, or has succeeded

	mu sync.Mutex
	// +checklocks:mu
	publishesOOMs bool // init's start or exit was published, or is about to be
	// +checklocks:mu
	pendingOOM bool // an OOM kill came before
	// +checklocks:mu
	execs map[string]*Process
}

// New has runtime create a container, and publishes the event. If it fails, nothing is left of the container.
func New(ctx context.Context, runtime Runtime, events *event.Queue, config Config) (*Container, error) {
	c := &Container{config: config, events: events, execs: map[string]*Process{}, starts: newGate(), exits: newGate()}
	c.init = newProcess(c, "", nil, config.IO, nil)
	if err := c.create(ctx, runtime); err != nil {
		undone := Undo(func() error { return c.remove(errors.Is(err, ErrLeft)) })
		return nil, fmt.Errorf("container %q: %w", config.ID, errors.Join(err, undone))
	}
	pid, io := c.init.Pid(), config.IO
	events.Put(event.TaskCreate{
		ContainerID: config.ID, Bundle: config.Bundle, Rootfs: config.Mounts, Checkpoint: config.Checkpoint, Pid: pid,
		Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Terminal: io.Terminal,
	})
	if pid != 0 {
		c.config.Spec = nil // tens of kilobytes, which nobody needs any more
		c.init.handle.OnEnd(c.init.await)
	}
	return c, nil
}

// create has the runtime create the container, with init unless Start restores that. If it fails, remove is still to be
// called.
func (c *Container) create(ctx context.Context, runtime Runtime) (err error) {
	if err := c.config.Record.Begin(); err != nil {
		return err
	}
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
		return errors.Join(err, UndoCreate(c.runtime.Discard))
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
	c.config.Record.Created(init.Pid())
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

// remove undoes all hooks, even if some of them fail, and then the record, which stays while something is left.
func (c *Container) remove(left bool) error {
	var errs []error
	for _, h := range slices.Backward(c.config.Hooks) {
		errs = append(errs, h.Removed())
	}
	if err := errors.Join(errs...); left || err != nil {
		return err
	}
	return c.config.Record.Remove()
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

// publishOOMs publishes one event for the OOM kills so far, and lets oomKilled publish each further one. It is called
// after the start of init is published, or just before its exit is.
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
	limits, env, err := c.config.ExecLimits.FromEnv(spec.Env)
	if err != nil {
		return fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, err)
	}
	own := *spec
	own.Env = env
	io.KeepUnread = unreadTimeout
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.init.check(OpExec); err != nil { // with mu held: Delete deletes the execs that it finds
		return err
	}
	if _, ok := c.execs[execID]; ok {
		return fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, errdefs.ErrAlreadyExists)
	}
	c.execs[execID] = newProcess(c, execID, &own, io, limits)
	c.events.Put(event.TaskExecAdded{ContainerID: c.ID(), ExecID: execID})
	return nil
}

// allExecs returns the execs that have not been deleted.
func (c *Container) allExecs() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.execs))
}

// Execs returns a map from the pid of each live exec to its id.
func (c *Container) Execs() map[int]string {
	pids := map[int]string{}
	for _, p := range c.allExecs() {
		if s := p.Status(); s.Pid != 0 && s.State != Stopped {
			pids[s.Pid] = s.ID
		}
	}
	return pids
}

// KillAll sends sig to every process of the container. After SIGKILL it waits until no process is left in the cgroup,
// for remainingTimeout at most. One in uninterruptible sleep may remain; its exit will tell when it has ended.
func (c *Container) KillAll(ctx context.Context, sig syscall.Signal) (err error) {
	defer c.use(UseSignal)()
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
	var groupErr error
	switch {
	case !inCgroup:
	case sig != syscall.SIGKILL:
		groupErr = group.Signal(sig, nil)
	default:
		bounded, cancel := context.WithTimeout(ctx, remainingTimeout)
		defer cancel()
		groupErr = group.Kill(bounded)
		if errors.Is(groupErr, context.DeadlineExceeded) && ctx.Err() == nil {
			logger(c.ID()).WithError(groupErr).Warn("all processes were killed, but some do not end")
			groupErr = nil
		}
	}
	if groupErr != nil {
		groupErr = c.init.wrap(fmt.Errorf("kill all with signal %d: %w", sig, groupErr))
	}
	return errors.Join(groupErr, err)
}

func logger(containerID string) *log.Entry { return log.L.WithField("container", containerID) }

// ErrLeft means that a failed creation could not be undone. [Config.Record] then stays.
var ErrLeft = errors.New("something of the container is left")

// Undo calls undo until it succeeds, at most five times within a tenth of a second: a lack of descriptors, for example,
// often passes, and nobody else would undo it. An undo that has waited in vain is not tried again.
func Undo(undo func() error) error {
	const first, last = time.Millisecond, 64 * time.Millisecond
	for wait := first; ; wait *= 4 {
		err := undo()
		if err == nil || wait > last || errors.Is(err, context.DeadlineExceeded) || errdefs.IsFailedPrecondition(err) {
			return err
		}
		log.L.WithError(err).Warn("undo: tried again")
		<-time.After(wait)
	}
}

// UndoCreate is Undo for a Create that has failed. Its error is ErrLeft.
func UndoCreate(undo func() error) error {
	if err := Undo(undo); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// Inspect returns what this package knows about the container, with at most maxExecs of its execs. It never blocks.
func (c *Container) Inspect(maxExecs int) inspect.ContainerInfo {
	s := c.init.Status()
	answer := inspect.ContainerInfo{
		ID: c.ID(), Bundle: s.Bundle, State: s.State.String(), Pid: s.Pid, Exit: shownExit(s),
		Launch: c.runtime.Launch(), Execs: c.inspectExecs(maxExecs),
	}
	if group := c.Cgroup(); group.Exists() {
		answer.Cgroup = group.String()
	}
	return answer
}

func (c *Container) inspectExecs(most int) inspect.Execs {
	all := c.allExecs()
	slices.SortFunc(all, func(a, b *Process) int { return cmp.Compare(a.execID, b.execID) })
	execs := inspect.Execs{Started: c.execsStarted.Load(), Known: len(all)}
	for _, p := range all[:min(len(all), most)] {
		s := p.Status()
		one := inspect.Exec{ID: s.ID, State: s.State.String(), Pid: s.Pid, Exit: shownExit(s)}
		if group := p.execCgroup(); group != nil {
			used, _ := group.Cgroup().Usage() // of one that has exited it is gone
			one.CPU, one.Memory = used.CPU, used.Memory
		}
		execs.List = append(execs.List, one)
	}
	return execs
}

func shownExit(s Status) *inspect.Exit {
	if s.State != Stopped {
		return nil
	}
	return &inspect.Exit{Status: s.Exit.Status, At: s.Exit.At}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/stdio"
)

// Container is one container: its init and its execs.
type Container struct {
	config  Config
	runtime Runtime
	events  *event.Queue
	oom     *cgroup.OOMWatch
	record  func(Exit)
	init    *Process

	// freezing is held shared while an exec is being started and exclusively
	// while the container is being frozen: an exec that joined a frozen cgroup
	// would hang in the middle of its set-up.
	freezing sync.RWMutex

	mu         sync.Mutex
	execs      map[string]*Process
	initExited bool          // init is dead: no exec starts any more (P4)
	live       int           // execs that started, or are about to, and whose exit is not told yet
	idle       chan struct{} // not nil while init's waiter waits for live to become 0; closed then
	pausing    bool          // a freeze is under way
}

// New makes a container by engine and tells so. record is called by init's
// waiter with init's exit before the exit is told; it must not block for long.
// rootfs is what the sandbox mounted, for the event. When New fails nothing is
// left of the container.
func New(ctx context.Context, engine Engine, events *event.Queue, config Config, rootfs []event.Mount, record func(Exit)) (*Container, error) {
	streams, err := stdio.Open(ctx, config.IO, config.IOOwner)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", config.ID, err)
	}
	runtime, err := engine.Create(ctx, config, streams)
	if err != nil {
		_ = streams.Close() // nothing was written to them
		return nil, fmt.Errorf("container %q: %w", config.ID, err)
	}
	c := &Container{config: config, runtime: runtime, events: events, record: record, execs: map[string]*Process{}}
	// Watched before init can run its program, so that no kill is missed.
	if c.oom, err = runtime.Cgroup().WatchOOM(func() { events.Put(event.TaskOOM{ContainerID: config.ID}) }); err != nil {
		c.discard(streams)
		return nil, fmt.Errorf("container %q: watch for OOM kills: %w", config.ID, err)
	}
	c.init = newProcess(c, "", nil, config.IO)
	c.init.handle, c.init.streams = runtime.Init(), streams
	events.Put(event.TaskCreate{
		ContainerID: config.ID, Bundle: config.Bundle, Rootfs: rootfs,
		IO:  event.IO{Stdin: config.IO.Stdin, Stdout: config.IO.Stdout, Stderr: config.IO.Stderr, Terminal: config.IO.Terminal},
		Pid: c.init.Pid(),
	})
	go c.init.await() // ends at init's exit; Delete joins it through drained
	return c, nil
}

// discard undoes a create of which nobody knows yet.
func (c *Container) discard(streams *stdio.Streams) {
	init := c.runtime.Init()
	_ = init.Signal(syscall.SIGKILL) // it may be dead already
	init.Wait()
	_ = streams.Close()
	if err := c.runtime.Destroy(); err != nil {
		logger(c.ID()).WithError(err).Error("remove half-made container")
	}
}

// ID is the container id.
func (c *Container) ID() string { return c.config.ID }

// Init is the container's first process.
func (c *Container) Init() *Process { return c.init }

// Cgroup is where the container's processes live.
func (c *Container) Cgroup() *cgroup.Cgroup { return c.runtime.Cgroup() }

// Process finds init, by an empty id, or an exec.
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

// AddExec registers an exec; Process.Start runs it.
func (c *Container) AddExec(execID string, spec *specs.Process, io stdio.Config) error {
	if err := c.init.check(OpExec); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.execs[execID]; ok {
		return fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, errdefs.ErrAlreadyExists)
	}
	c.execs[execID] = newProcess(c, execID, spec, io)
	c.events.Put(event.TaskExecAdded{ContainerID: c.ID(), ExecID: execID})
	return nil
}

// Execs maps the pid of each live exec to its id.
func (c *Container) Execs() map[int]string {
	c.mu.Lock()
	all := make([]*Process, 0, len(c.execs))
	for _, p := range c.execs {
		all = append(all, p)
	}
	c.mu.Unlock()
	pids := make(map[int]string, len(all))
	for _, p := range all {
		if s := p.Status(); s.Pid != 0 && s.State != Stopped {
			pids[s.Pid] = s.ID
		}
	}
	return pids
}

// KillAll sends sig to every process of the container.
func (c *Container) KillAll(ctx context.Context, sig syscall.Signal) error {
	if err := c.init.check(OpKill); err != nil {
		return err
	}
	if err := c.runtime.Cgroup().Kill(ctx, sig); err != nil {
		return c.init.wrap(fmt.Errorf("kill all with signal %d: %w", sig, err))
	}
	return nil
}

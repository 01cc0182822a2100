// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/notify"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stats"
	"sandbox.internal/shim/pkg/stdio"
)

// Start runs the program of init, or an exec. If init tells when it is ready, Start returns then. It fails if init is
// not ready in time, or exits before; init is dead then and its exit is told.
func (m *Manager) Start(ctx context.Context, containerID, execID string) (*process.Process, error) {
	c, err := m.Container(containerID)
	if err != nil {
		return nil, err
	}
	p, err := c.Process(execID)
	if err != nil {
		return nil, err
	}
	if execID == "" && c.Restored() {
		if _, err := m.admit(); err != nil {
			return nil, fmt.Errorf("container %q: %w", containerID, err)
		}
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	if execID != "" || c.notify == nil || c.Restored() { // it was ready before it was checkpointed
		return p, nil
	}
	return p, c.awaitReady(ctx)
}

// awaitReady waits until init tells that it is ready. It goes on when ctx ends: init runs, and has to be ready in time
// also if containerd is restarted meanwhile.
func (c *Container) awaitReady(ctx context.Context) error {
	ready := make(chan error, 1)
	go func() { // ends with the time-out or init's exit at the latest; Start succeeds once, so it is the only one
		err := c.notify.AwaitReady(c.Init())
		if err != nil {
			err = fmt.Errorf("container %q: start: %w", c.ID(), err)
			if ctx.Err() != nil {
				log.L.WithError(err).Error("nobody waits for this start any more")
			}
		}
		ready <- err
	}()
	select {
	case err := <-ready:
		return err
	case <-ctx.Done():
		return fmt.Errorf("container %q: start: not ready yet: %w", c.ID(), ctx.Err())
	}
}

// Exec registers an exec of c; Start runs it.
func (m *Manager) Exec(c *Container, execID string, spec *specs.Process, io stdio.Config) error {
	if err := CheckID("exec id", execID); err != nil {
		return err
	}
	if err := checkProcess(spec); err != nil {
		return fmt.Errorf("container %q: exec %q: spec.%w", c.ID(), execID, err)
	}
	io.ID, io.Host = execID, m.io
	// CRI makes a fifo for the stderr of an exec with a terminal as well, and never reads it (containerd
	// internal/cri/io/exec_io.go, Attach): with a stderr of its own `kubectl exec -it` would show none, and no shell
	// would be interactive.
	io.SplitStderr = !c.ofCRI
	return c.AddExec(execID, spec, io)
}

// Delete removes a container whose init has exited or was never started, or an exec of it. A Delete that failed can be
// tried again. It ends a Create under way; the container is not found then, unless it had been created.
func (m *Manager) Delete(ctx context.Context, containerID, execID string) (process.Status, error) {
	if execID == "" {
		// containerd deletes what its client no longer waits for, and ends the shim only when that worked
		// (core/runtime/v2, TaskManager.Create).
		if err := m.cancelCreate(ctx, containerID); err != nil {
			return process.Status{}, err
		}
	}
	c, err := m.Container(containerID)
	if err != nil {
		return process.Status{}, err
	}
	if execID != "" {
		p, err := c.Process(execID)
		if err != nil {
			return process.Status{}, err
		}
		return c.DeleteExec(ctx, p)
	}
	status, err := c.Delete(ctx)
	if err == nil {
		c.closeStats()
		m.release(containerID) // after TaskDelete was told, or Shutdown could come before it
	}
	return status, err
}

// criTypeAnnotation is on every container of containerd's CRI plugin, and on no other (containerd
// internal/cri/annotations).
const criTypeAnnotation = "io.kubernetes.cri.container-type"

// Container is a container and what the Manager knows of it.
type Container struct {
	*process.Container
	cpusets   *cpuset.Reconciler
	notify    *notify.Hook // nil: Start does not wait for it
	host      *hostrootfs.Rootfs
	stop      process.Stop
	stopIsSet bool // a setting says how it is to be stopped
	joinsPIDs bool // it is in the PID namespace of another container
	ofCRI     bool // containerd's CRI plugin made it

	mu sync.Mutex
	// +checklocks:mu
	stats *stats.Reader // nil until it is asked for: a container to be restored has no cgroup yet
	// +checklocks:mu
	stopBy time.Time // end of the grace of the Stop under way; zero before it
}

// PIDs returns the processes in the container's cgroup, and after its exit the pid that init had: containerd, when it
// starts, deletes a container without a pid (core/runtime/v2/shim_load.go), and nobody would hear how it ended.
func (c *Container) PIDs() ([]int, error) {
	pids, err := c.Cgroup().Procs()
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	if init := c.Init(); len(pids) == 0 && init.Status().State == process.Stopped {
		pids = []int{init.Pid()}
	}
	return pids, nil
}

// Metrics are those of the container's cgroup, as containerd's message for the version of cgroups. The error is
// errdefs.ErrNotFound when the cgroup is gone.
func (c *Container) Metrics() (stats.Metrics, error) {
	reader, err := c.reader()
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	m, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	return m, nil
}

func (c *Container) reader() (_ *stats.Reader, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats == nil {
		c.stats, err = stats.New(c.Cgroup())
	}
	return c.stats, err
}

// closeStats closes what Metrics opened. The cgroup is gone, so a Metrics under way opens nothing again.
func (c *Container) closeStats() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats != nil {
		c.stats.Close()
	}
}

// CPUSet is how the container follows the CPUs of another cgroup, and false if it does not.
func (c *Container) CPUSet() (cpuset.State, bool) { return c.cpusets.State(c.ID()) }

// Notified is what init told by its notify socket, and false if it has none.
func (c *Container) Notified() (notify.State, bool) {
	if c.notify == nil {
		return notify.State{}, false
	}
	return c.notify.State(), true
}

// Checkpoint writes the container's state to disk. It refuses a container with directories of the host.
func (c *Container) Checkpoint(ctx context.Context, r process.CheckpointRequest) error {
	if err := c.host.RefuseCheckpoint("cannot be checkpointed", errdefs.ErrFailedPrecondition); err != nil {
		return fmt.Errorf("container %q: checkpoint: %w", c.ID(), err)
	}
	return c.Container.Checkpoint(ctx, r)
}

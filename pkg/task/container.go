// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/notify"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stats"
)

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

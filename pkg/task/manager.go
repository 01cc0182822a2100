// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package task is the registry of a shim's containers: it creates them with all that surrounds them, starts, stops and
// deletes them, and decides when the shim has nothing left to do. With the Sandbox API the pod has a life of its own,
// which pkg/podsandbox controls from above (pod.go). Without it the shim ends with the last container.
//
// Create reads as follows: reserve the id, read the configuration and the settings (pkg/settings), list the hooks that
// make what surrounds the container (create.go), and have pkg/process run them around the runtime's Create.
//
// # Goroutines
//
// Start has one for a container that tells when it is ready; it ends with the time-out or with init's exit. StopAll and
// StopContainers have one for each container, and wait for them. Hooks own theirs: the cpuset.Reconciler's ends with
// the last container that follows a source, or with Close; the notify.Receiver's with the container.
//
// # Locks
//
// Manager.mu guards the registry, and is taken before the lock of a pod. Container.mu guards what is learned of one
// container while it runs. Neither is held over anything that blocks. An entry without a container reserves the id
// while it is being created; Delete of that id cancels the Create. index has a lock of its own, held while small files
// are written, and takes no other.
package task

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Manager has the containers of one shim: those of a pod, or one that is in none.
type Manager struct {
	namespace string // containerd's
	runtime   process.Runtime
	events    *event.Queue
	suspend   func() (resume func()) // the reaper, while mount helpers may run
	io        *stdio.Host            // nil: neither logging binaries nor streaming
	cgroups   cgroups.CGMode
	cpusets   *cpuset.Reconciler // has a goroutine while a container follows the cpuset of another cgroup
	index     cleanup.Index      // on disk, for the delete command

	mu sync.Mutex
	// +checklocks:mu
	containers map[string]*entry
	pod        *pod          // of the Sandbox API; nil if there is none
	done       chan struct{} // closed once, by Shutdown
	// +checklocks:mu
	closed bool
}

// entry reserves an id. Its container is nil while it is being created.
type entry struct {
	container *Container
	cancel    context.CancelFunc // ends the Create
	created   chan struct{}      // closed once, when Create has ended, either way
}

// cgroupRoot is where cgroup v2 is mounted (pkg/cgroup).
const cgroupRoot = "/sys/fs/cgroup"

// New makes a Manager without containers. suspend is that of a reaper.Reaper.
func New(namespace string, runtime process.Runtime, events *event.Queue, suspend func() (resume func())) *Manager {
	return &Manager{
		namespace: namespace, runtime: runtime, events: events, suspend: suspend,
		cgroups: cgroups.Mode(), cpusets: cpuset.New(cgroupRoot, cpuset.Inotify),
		containers: map[string]*entry{}, done: make(chan struct{}),
	}
}

// ServeIO lets containers that are created from now on have what h serves: logging binaries and streaming.
func (m *Manager) ServeIO(h *stdio.Host) { m.io = h }

// StreamRegistry is where streaming clients meet their streams; nil without ServeIO.
func (m *Manager) StreamRegistry() *stdio.StreamRegistry {
	if m.io == nil {
		return nil
	}
	return m.io.StreamRegistry
}

// Container finds a container. The error is errdefs.ErrNotFound for an unknown id, and errdefs.ErrFailedPrecondition
// while it is being created.
func (m *Manager) Container(containerID string) (*Container, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.containers[containerID]
	switch {
	case !ok:
		return nil, fmt.Errorf("container %q: not created: %w", containerID, errdefs.ErrNotFound)
	case e.container == nil:
		return nil, fmt.Errorf("container %q: still being created: %w", containerID, errdefs.ErrFailedPrecondition)
	}
	return e.container, nil
}

// Process finds the init of a container, by an empty execID, or an exec.
func (m *Manager) Process(containerID, execID string) (*process.Process, error) {
	c, err := m.Container(containerID)
	if err != nil {
		return nil, err
	}
	return c.Process(execID)
}

// Shutdown ends the shim, unless there is a container, or a pod, which podsandbox.Controller.Shutdown ends: containerd
// asks after every task that it deleted (core/runtime/v2/shim.go, shimTask.delete). It reports whether the shim ends by
// this call.
func (m *Manager) Shutdown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shutdownLocked()
}

// +checklocks:m.mu
func (m *Manager) shutdownLocked() bool {
	if len(m.containers) > 0 || m.pod != nil || m.closed {
		return false
	}
	m.closed = true
	close(m.done)
	return true
}

// Idle reports whether there is no container, though one could be created.
func (m *Manager) Idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.containers) == 0 && !m.closed
}

// Done is closed once Shutdown took effect; no container is created after.
func (m *Manager) Done() <-chan struct{} { return m.done }

// reserve takes an id, so that nobody else creates it meanwhile. cancel ends the caller's Create, which calls
// finishCreate at its end.
func (m *Manager) reserve(containerID string, cancel context.CancelFunc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("container %q: the shim is shutting down: %w", containerID, errdefs.ErrUnavailable)
	}
	if _, ok := m.containers[containerID]; ok {
		return fmt.Errorf("container %q: %w", containerID, errdefs.ErrAlreadyExists)
	}
	if _, err := m.admitLocked(); err != nil {
		return fmt.Errorf("container %q: %w", containerID, err)
	}
	m.containers[containerID] = &entry{cancel: cancel, created: make(chan struct{})}
	return nil
}

// finishCreate ends a Create: c is nil when it failed, and the id is free again.
func (m *Manager) finishCreate(containerID string, c *Container) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.containers[containerID]
	if e.container = c; c == nil {
		delete(m.containers, containerID)
	}
	close(e.created)
}

// cancelCreate ends the Create of containerID, if one is under way, and waits for its end.
func (m *Manager) cancelCreate(ctx context.Context, containerID string) error {
	m.mu.Lock()
	e := m.containers[containerID]
	m.mu.Unlock()
	if e == nil {
		return nil
	}
	select {
	case <-e.created:
		return nil
	default:
	}
	e.cancel()
	select {
	case <-e.created:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %q: being created, and does not end: %w", containerID, ctx.Err())
	}
}

func (m *Manager) release(containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.containers, containerID)
}

// Close ends the goroutine of the Reconciler. It is for the end of the shim, which containers may outlive: they keep
// the cpusets that they have.
func (m *Manager) Close() { m.cpusets.Stop() }

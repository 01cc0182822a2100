// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package task is the registry of a shim's containers: it creates them with all that surrounds them, starts, stops and
// deletes them, and decides when the shim has nothing left to do. With the Sandbox API the pod has a lifecycle of its
// own, which pkg/sandbox controls. Without it the shim ends with the last container.
//
// It has no goroutines but those that a call waits for. Manager.mu guards the registry, and is taken before the lock of
// a pod; Task.mu guards the reader of statistics. Neither is held over anything that blocks.
package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
)

// Manager manages the containers of one shim: those of a pod, or a single one without a pod.
type Manager struct {
	runtime    process.Runtime
	events     *event.Queue
	io         *stdio.Host
	cgroups    cgroups.CGMode
	cpusets    *cpuset.Reconciler // has a goroutine while a container follows the cpuset of another cgroup
	index      cleanup.Index      // on disk, for the delete command; has a lock of its own
	extensions extension.List
	settings   settings.Table
	done       chan struct{} // closed once, by Shutdown or ShutdownPod

	mu sync.Mutex
	// +checklocks:mu
	containers map[string]*entry
	// +checklocks:mu
	deleted []process.Status // of the last ones, for a Delete whose caller gave up before the answer and asks again
	// +checklocks:mu
	pod *pod // of the Sandbox API; nil if there is none
	// +checklocks:mu
	closed bool // no container is created any more

	thaws []func() // of Freeze and Save; nobody else is active then
}

// entry reserves an id. Its container is nil while it is being created.
type entry struct {
	container *Task
	cancel    context.CancelFunc // ends the Create
	created   chan struct{}      // closed once, when Create has ended, either way
}

// pod is what a Manager knows about the pod of its containers. pkg/sandbox sets it.
type pod struct {
	id, bundle string
	admit      Admit
}

// adapt adapts the configuration of a container to the pod.
type adapt = func(*specs.Spec) error

// Admit returns an error if no container may be created now, or else a function that adapts the configuration of a
// container to the pod. It is called with the Manager's lock held.
type Admit func() (adapt func(*specs.Spec) error, err error)

// New makes a Manager without containers. The settings are those of the extensions, which managers share.
func New(
	runtime process.Runtime, events *event.Queue, io *stdio.Host, extensions extension.List, settings settings.Table,
) *Manager {
	return &Manager{
		runtime: runtime, events: events, io: io, extensions: extensions, settings: settings,
		cgroups: cgroups.Mode(), cpusets: cpuset.New("/sys/fs/cgroup", cpuset.Inotify),
		containers: map[string]*entry{}, done: make(chan struct{}),
	}
}

// Namespace returns the containerd namespace of all containers.
func (m *Manager) Namespace() string { return m.io.Namespace }

// CheckAnnotations refuses annotations with this shim's prefix that nobody reads.
func (m *Manager) CheckAnnotations(annotations map[string]string) error {
	return m.settings.CheckAnnotations(annotations)
}

// Containers returns the containers whose Create has succeeded, in the order of their ids.
func (m *Manager) Containers() (all []*Task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.containers)) {
		if c := m.containers[id].container; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// Container returns a container. The error is errdefs.ErrNotFound for an unknown id and before the end of its Create:
// for every other class containerd tells its client that the status is UNKNOWN (plugins/services/tasks/local.go,
// getProcessState).
func (m *Manager) Container(containerID string) (*Task, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.containers[containerID]; e != nil && e.container != nil {
		return e.container, nil
	}
	return nil, fmt.Errorf("container %q: not created: %w", containerID, errdefs.ErrNotFound)
}

// Has reports whether there is a container, even one that is being created.
func (m *Manager) Has(containerID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.containers[containerID] != nil
}

// Had reports whether a container was deleted not long ago.
func (m *Manager) Had(containerID string) bool {
	_, had := m.deletedStatus(containerID)
	return had
}

// Process returns the init of a container if execID is empty, otherwise an exec. See Container for the errors.
func (m *Manager) Process(containerID, execID string) (*process.Process, error) {
	c, err := m.Container(containerID)
	if err != nil {
		return nil, err
	}
	return c.Process(execID)
}

// Status returns the status of init if execID is empty, otherwise of an exec. A container that was deleted is Stopped:
// containerd asks only if it does not know about the deletion.
func (m *Manager) Status(containerID, execID string) (process.Status, error) {
	p, err := m.Process(containerID, execID)
	if err == nil {
		return p.Status(), nil
	}
	if status, ok := m.deletedStatus(containerID); ok && execID == "" {
		return status, nil
	}
	return process.Status{}, err
}

// Shutdown ends the shim if it has neither containers nor a pod. containerd calls it after each task that it has
// deleted (core/runtime/v2/shim.go, shimTask.delete). It reports whether this call ends the shim.
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

// Done returns a channel that is closed once Shutdown takes effect; no container is created afterwards.
func (m *Manager) Done() <-chan struct{} { return m.done }

// reserve reserves an id, so that nobody else creates it meanwhile. cancel ends the caller's Create, which calls
// finishCreate at its end.
func (m *Manager) reserve(containerID string, cancel context.CancelFunc) (adapt, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.containers[containerID]; ok {
		return nil, errdefs.ErrAlreadyExists
	}
	adapt, err := m.admitLocked()
	if err != nil {
		return nil, err
	}
	m.containers[containerID] = &entry{cancel: cancel, created: make(chan struct{})}
	m.deleted = slices.DeleteFunc(m.deleted, func(s process.Status) bool { return s.ID == containerID })
	return adapt, nil
}

// admitLocked fails if no container may be created or restored: the shim is ending, or its pod does not run, whose pid
// may be another process by now.
//
// +checklocks:m.mu
func (m *Manager) admitLocked() (adapt, error) {
	switch {
	case m.closed:
		return nil, fmt.Errorf("the shim is shutting down: %w", errdefs.ErrUnavailable)
	case m.pod == nil:
		return func(*specs.Spec) error { return nil }, nil
	}
	return m.pod.admit()
}

func (m *Manager) mayRestore() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.admitLocked()
	return err
}

// finishCreate ends a Create: c is nil when it failed, and the id is free again.
func (m *Manager) finishCreate(containerID string, c *Task) {
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
	e.cancel() // without effect after the end
	select {
	case <-e.created:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %q: being created, and does not end: %w", containerID, ctx.Err())
	}
}

// keptDeleted is how many containers of a long-lived shim are remembered after their deletion.
const keptDeleted = 64

// releaseDeleted frees the id of a container if nothing of it is left, even if something panicked after that, and
// remembers its status.
func (m *Manager) releaseDeleted(c *Task) {
	status := c.Init().Status()
	if status.State != process.Deleted {
		return
	}
	c.mu.Lock()
	if c.stats != nil {
		c.stats.Close() // the cgroup is gone, so a Metrics under way opens nothing again
	}
	c.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.containers[c.ID()]; e != nil && e.container == c { // another Delete may have been first
		delete(m.containers, c.ID())
		m.deleted = append(m.deleted[max(0, len(m.deleted)-keptDeleted+1):], status)
	}
}

// deletedStatus returns the status of a container that was deleted, if it is remembered. A Create with the same id
// forgets it.
func (m *Manager) deletedStatus(containerID string) (status process.Status, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.deleted, func(s process.Status) bool { return s.ID == containerID })
	if i < 0 {
		return process.Status{}, false
	}
	return m.deleted[i], true
}

// Close ends the goroutine of the Reconciler. Containers that outlive the shim keep their cpusets.
func (m *Manager) Close() { m.cpusets.Stop() }

// KeepIndex records for what the shim was started, where it listens, and how the delete command answers. It is called
// before anything is created.
func (m *Manager) KeepIndex(id, bundle, socket string, answer cleanup.Answer) {
	m.index.SetShim(id, bundle, socket, answer)
}

// ShareShim says whether the shim has others beside this Manager. It is called before anything is created.
func (m *Manager) ShareShim(others func() bool) { m.index.Others = others }

// AddPod adds the pod, with which the shim does not end before RemovePod or ShutdownPod. From then on admit decides
// whether a container can be created. It fails if there is a container or a pod, and while the shim is ending.
func (m *Manager) AddPod(sandboxID, bundle string, admit Admit) (err error) {
	m.mu.Lock()
	switch {
	case m.closed:
		err = fmt.Errorf("the shim is shutting down: %w", errdefs.ErrUnavailable)
	case m.pod != nil:
		err = fmt.Errorf("this shim has sandbox %q: %w", m.pod.id, errdefs.ErrAlreadyExists)
	case len(m.containers) > 0:
		err = fmt.Errorf("this shim has containers that are in no sandbox: %w", errdefs.ErrFailedPrecondition)
	default:
		m.pod = &pod{id: sandboxID, bundle: bundle, admit: admit}
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if err := m.index.Write(sandboxID, bundle, m.podState(0)); err != nil {
		return errors.Join(err, m.RemovePod())
	}
	return nil
}

// SetPodPid records the process that holds the pod's namespaces for the delete command. There must be a pod.
func (m *Manager) SetPodPid(pid int) error {
	m.mu.Lock()
	id, bundle := m.pod.id, m.pod.bundle
	m.mu.Unlock()
	return m.index.Write(id, bundle, m.podState(pid))
}

func (m *Manager) podState(pid int) cleanup.State {
	return cleanup.State{Root: cleanup.DefaultRoot(m.io.Namespace), Pid: pid, Pod: true}
}

// RemovePod undoes AddPod.
func (m *Manager) RemovePod() error { return m.removePod(cleanup.State{}, false) }

// ShutdownPod removes the pod and ends the shim in one step: a container that was created in between would find the
// host's namespaces at the pod's pid. It ends the shim even if it fails. There must be no containers. The delete
// command answers pid and exit. If exit is nil something may be left of the pod, which that command removes.
func (m *Manager) ShutdownPod(pid int, exit *process.Exit) error {
	return m.removePod(cleanup.State{Pid: pid, Exit: exit}, true)
}

func (m *Manager) removePod(last cleanup.State, shutdown bool) error {
	m.mu.Lock()
	p := m.pod
	m.mu.Unlock()
	var err error
	keep := shutdown && last.Exit == nil
	if p != nil && !keep { // without a pod another shutdown was faster
		if err = m.index.Remove(p.id, p.bundle); err == nil {
			m.index.LeaveAnswer(p.bundle, last)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = nil
	if shutdown {
		m.shutdownLocked()
	}
	return err
}

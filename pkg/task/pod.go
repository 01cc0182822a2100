// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cleanup"
)

// pod is what a Manager knows of the pod of its containers. pkg/podsandbox sets it.
type pod struct {
	id, bundle string
	admit      Admit
}

// Admit says why no container may be created now, or returns what changes the configuration of one for the pod. It is
// called with the Manager's lock held.
type Admit func() (adapt func(*specs.Spec) error, err error)

// KeepIndex says in which bundle the shim was started and where it listens, for the delete command. It is called before
// anything is created.
func (m *Manager) KeepIndex(bundle, socket string) { m.index.Init(bundle, socket) }

// AddPod adds the pod, with which the shim does not end before RemovePod or ShutdownPod. From then on admit decides
// whether a container can be created. That does not end a Create under way; StopAll does. AddPod fails if there is a
// container or a pod, and while the shim ends.
func (m *Manager) AddPod(sandboxID, bundle string, admit Admit) error {
	if err := m.reservePod(&pod{id: sandboxID, bundle: bundle, admit: admit}); err != nil {
		return err
	}
	if err := m.index.SetPod(sandboxID, bundle, true); err != nil {
		return errors.Join(err, m.RemovePod())
	}
	return nil
}

func (m *Manager) reservePod(p *pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fmt.Errorf("the shim is shutting down: %w", errdefs.ErrUnavailable)
	case m.pod != nil:
		return fmt.Errorf("this shim has sandbox %q: %w", m.pod.id, errdefs.ErrAlreadyExists)
	case len(m.containers) > 0:
		return fmt.Errorf("this shim has containers that are in no sandbox: %w", errdefs.ErrFailedPrecondition)
	}
	m.pod = p
	return nil
}

// SetPodPid records the process that holds the pod's namespaces for the delete command. There is a pod.
func (m *Manager) SetPodPid(pid int) error {
	m.mu.Lock()
	bundle := m.pod.bundle
	m.mu.Unlock()
	return cleanup.State{Root: cleanup.DefaultRoot(m.namespace), Pid: pid}.Write(bundle)
}

// RemovePod undoes AddPod.
func (m *Manager) RemovePod() error { return m.removePod(false) }

// ShutdownPod removes the pod and ends the shim in one step: a container that was created in between would find the
// host's namespaces at the pod's pid. It ends the shim also when it returns an error. There are no containers.
func (m *Manager) ShutdownPod() error { return m.removePod(true) }

func (m *Manager) removePod(shutdown bool) error {
	m.mu.Lock()
	p := m.pod
	m.mu.Unlock()
	var err error
	if p != nil { // else another shutdown was faster
		err = errors.Join(m.index.SetPod(p.id, p.bundle, false), cleanup.RemoveState(p.bundle))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = nil
	if shutdown {
		m.shutdownLocked()
	}
	return err
}

// admit fails if the pod, if there is one, does not run: the namespaces at its pid may be the host's.
func (m *Manager) admit() (adapt func(*specs.Spec) error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.admitLocked()
}

// +checklocks:m.mu
func (m *Manager) admitLocked() (adapt func(*specs.Spec) error, err error) {
	if m.pod == nil {
		return func(*specs.Spec) error { return nil }, nil
	}
	return m.pod.admit()
}

// Containers returns those whose Create has succeeded, in the order of their ids.
func (m *Manager) Containers() []*Container {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*Container
	for _, id := range slices.Sorted(maps.Keys(m.containers)) {
		if c := m.containers[id].container; c != nil { // else it is being created
			all = append(all, c)
		}
	}
	return all
}

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
	refusal    error                   // why no container may be created now; nil: they may
	adapt      func(*specs.Spec) error // of the configuration of a container; nil before AdmitContainers
}

// KeepIndex says in which bundle the shim was started and where it listens, for the delete command. It is called before
// anything is created.
func (m *Manager) KeepIndex(bundle, socket string) { m.index.Init(bundle, socket) }

// AddPod adds the pod, with which the shim does not end before RemovePod or ShutdownPod. Create fails with refusal
// until AdmitContainers is called. AddPod fails if there is a container or a pod, and while the shim ends.
func (m *Manager) AddPod(sandboxID, bundle string, refusal error) error {
	if err := m.reservePod(&pod{id: sandboxID, bundle: bundle, refusal: refusal}); err != nil {
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

// AdmitContainers allows Create from now on. adapt changes the configuration of each container for the pod. There is a
// pod.
func (m *Manager) AdmitContainers(adapt func(*specs.Spec) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod.refusal, m.pod.adapt = nil, adapt
}

// RefuseContainers makes Create fail with refusal from now on. It does not end a Create under way; StopAll does. There
// is a pod.
func (m *Manager) RefuseContainers(refusal error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod.refusal = refusal
}

// SetPodPid records the process that holds the pod's namespaces for the delete command. There is a pod.
func (m *Manager) SetPodPid(pid int) error {
	m.mu.Lock()
	bundle := m.pod.bundle
	m.mu.Unlock()
	return cleanup.State{Root: cleanup.DefaultRoot(m.namespace), Pid: pid}.Write(bundle)
}

// RemovePod undoes AddPod.
func (m *Manager) RemovePod() error {
	err := m.removePodFiles()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = nil
	return err
}

// ShutdownPod removes the pod and ends the shim in one step: a container that was created in between would find the
// host's namespaces at the pod's pid. It ends the shim also when it returns an error. There are no containers.
func (m *Manager) ShutdownPod() error {
	err := m.removePodFiles()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = nil
	m.shutdownLocked()
	return err
}

// removePodFiles removes what the delete command would read of the pod.
func (m *Manager) removePodFiles() error {
	m.mu.Lock()
	p := m.pod
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	return errors.Join(m.index.SetPod(p.id, p.bundle, false), cleanup.RemoveState(p.bundle))
}

// checkAdmission fails if the pod, if there is one, does not run: the namespaces at its pid may be the host's.
func (m *Manager) checkAdmission(containerID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkAdmissionLocked(containerID)
}

func (m *Manager) checkAdmissionLocked(containerID string) error {
	if m.pod != nil && m.pod.refusal != nil {
		return fmt.Errorf("container %q: %w", containerID, m.pod.refusal)
	}
	return nil
}

// adapt changes the configuration of an admitted container for the pod, if there is one.
func (m *Manager) adapt(spec *specs.Spec) error {
	m.mu.Lock()
	p := m.pod
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.adapt(spec)
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

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// State is what a Manager hands over to that of a successor.
type State struct {
	Index      cleanup.SavedIndex
	Containers []savedTask
	Deleted    []process.Status `json:",omitempty"`
}

// savedTask is a container. The options are in three parts, since two are not written as runtime options.
type savedTask struct {
	Process     *process.SavedState
	Options     options.Options
	Settings    map[string]string `json:",omitempty"`
	File        string            `json:",omitempty"`
	Annotations map[string]string `json:",omitempty"`
	Stop        process.Stop
	StopIsSet   bool `json:",omitempty"`
	JoinsPIDs   bool `json:",omitempty"`
	Record      cleanup.State
	Mounted     *bool             `json:",omitempty"` // something of the image; nil: there is none
	CPUSet      *cpuset.SavedHook `json:",omitempty"`
	Parts       map[string]json.RawMessage
}

// Freeze freezes all containers, until Thaw. No call is under way. If ctx ends first, or a Create or a stop is under
// way, it changes nothing, and the error is errdefs.ErrUnavailable.
func (m *Manager) Freeze(ctx context.Context) error {
	m.mu.Lock()
	closed := m.closed
	creating := false
	for _, e := range m.containers {
		creating = creating || e.container == nil
	}
	m.mu.Unlock()
	if closed || creating {
		return fmt.Errorf("the shim is ending, or a container is being created: %w", errdefs.ErrUnavailable)
	}
	thaw, err := m.cpusets.Freeze(ctx)
	if err != nil {
		return err
	}
	m.thaws = append(m.thaws, thaw)
	for _, c := range m.Containers() {
		if err := c.Freeze(ctx); err != nil {
			m.Thaw()
			return err
		}
		m.thaws = append(m.thaws, c.Thaw)
	}
	return nil
}

// Thaw undoes Freeze and Save.
func (m *Manager) Thaw() {
	for _, thaw := range m.thaws {
		thaw()
	}
	m.thaws = nil
}

// Save returns the state of a frozen Manager. The error is errdefs.ErrUnavailable if a successor cannot have it now.
func (m *Manager) Save(h *handover.Saver) (*State, error) {
	m.mu.Lock()
	s := &State{Index: m.index.Save(), Deleted: m.deleted}
	m.mu.Unlock()
	for _, c := range m.Containers() {
		saved, err := c.Save(h)
		if err != nil {
			return nil, err
		}
		one := savedTask{
			Process: saved, Options: c.options, Settings: c.options.Settings, File: c.options.File,
			Annotations: c.annotations, Stop: c.stop, StopIsSet: c.stopIsSet, JoinsPIDs: c.joinsPIDs, Record: c.record.state,
		}
		if c.rootfs != nil {
			one.Mounted = &c.rootfs.mounted
		}
		if c.cpuset != nil {
			one.CPUSet = new(c.cpuset.Save())
		}
		var thaw func()
		if one.Parts, thaw, err = extension.Save(c.parts, h); err != nil {
			return nil, fmt.Errorf("container %q: %w", c.ID(), err)
		}
		m.thaws = append(m.thaws, thaw)
		s.Containers = append(s.Containers, one)
	}
	return s, nil
}

// Restore adds the containers of a state to a new Manager, after KeepIndex. begin lets them run, when all is restored.
func (m *Manager) Restore(l *handover.Loader, s *State) (begin func(), err error) {
	m.index.Restore(s.Index)
	var begins []func()
	all := map[string]*entry{}
	for _, one := range s.Containers {
		c, begin, err := m.restore(l, one)
		if err != nil {
			return nil, err
		}
		created := make(chan struct{})
		close(created)
		all[c.ID()] = &entry{container: c, cancel: func() {}, created: created}
		begins = append(begins, begin)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.containers, m.deleted = all, s.Deleted
	return func() {
		for _, begin := range begins {
			begin()
		}
	}, nil
}

func (m *Manager) restore(l *handover.Loader, s savedTask) (c *Task, begin func(), err error) {
	if s.Process == nil {
		return nil, nil, fmt.Errorf("a container without a process: %w", errdefs.ErrInvalidArgument)
	}
	id, bundle := s.Process.ID, s.Process.Bundle
	s.Options.Settings, s.Options.File = s.Settings, s.File
	c = &Task{
		cpusets: m.cpusets, settings: m.settings, options: s.Options, annotations: s.Annotations,
		stop: s.Stop, stopIsSet: s.StopIsSet, joinsPIDs: s.JoinsPIDs,
	}
	values := m.settings.ValuesOf(s.Annotations, s.Options, m.io.Namespace, id)
	if c.parts, err = m.extensions.New(values); err != nil {
		return nil, nil, fmt.Errorf("container %q: %w", id, err)
	}
	c.record = &record{index: &m.index, id: id, bundle: bundle, parts: c.parts, state: s.Record}
	if s.Mounted != nil {
		c.rootfs = &rootfsHook{suspend: m.io.Children.Suspend, bundle: bundle, mounted: *s.Mounted}
	}
	if s.CPUSet != nil {
		c.cpuset = cpuset.RestoreHook(m.cpusets, m.cgroups, id, *s.CPUSet)
	}
	config := process.Config{ID: id, Bundle: bundle, IO: stdio.Config{Host: m.io}, MayRestore: m.mayRestore}
	c.hook(&config)
	if err := extension.Restore(c.parts, l, s.Parts, &config); err != nil {
		return nil, nil, fmt.Errorf("container %q: %w", id, err)
	}
	c.Container, begin, err = process.Restore(l, m.runtime, m.events, s.Process, config)
	return c, begin, err
}

// RestorePod adds the pod of a state to a new Manager: see AddPod.
func (m *Manager) RestorePod(sandboxID, bundle string, admit Admit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = &pod{id: sandboxID, bundle: bundle, admit: admit}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/notify"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stats"
)

// PodStatus is what SandboxStatus answers.
type PodStatus struct {
	ID        string
	Stage     PodStage
	Pid       int // 0 before start, and when it is stopped
	CreatedAt time.Time
	Exit      process.Exit // once it is stopped

	// When it is asked for more.
	Config  pod.Config
	Updated PodResources // since it was created
	Spec    *specs.Spec  // nil before start
	Members []PodMember  // in the order of their ids
}

// PodMember is a container of the pod.
type PodMember struct {
	process.Status
	CPUSet   *cpuset.State            // nil if it follows no other cgroup
	Notified *notify.State            // nil if it has no notify socket
	Execs    map[string]process.Usage // of execs with a cgroup of their own that were not deleted, by their ids
}

// PodResources are sums over the containers of a pod as CRI has them, in JSON. They are told to who asks for the pod's
// status, and limit nothing here: the pod's cgroup is its owner's.
type PodResources struct {
	Overhead, Resources json.RawMessage // nil when not told
}

// UpdatePod keeps the resources that are told, if there are any: after a restart containerd does not tell them by itself.
func (m *Manager) UpdatePod(sandboxID string, told *PodResources) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.podLocked(sandboxID)
	if err == nil && told != nil {
		p.updated = *told
	}
	return err
}

// PodStatus never blocks for long.
func (m *Manager) PodStatus(sandboxID string, verbose bool) (PodStatus, error) {
	m.mu.Lock()
	status, err := m.podStatusLocked(sandboxID)
	members := m.containersLocked()
	m.mu.Unlock()
	if err != nil || !verbose {
		status.Config, status.Updated, status.Spec = pod.Config{}, PodResources{}, nil
		return status, err
	}
	for _, c := range members {
		status.Members = append(status.Members, c.member())
	}
	return status, nil
}

func (m *Manager) podStatusLocked(sandboxID string) (PodStatus, error) {
	p, err := m.podLocked(sandboxID)
	if err != nil {
		return PodStatus{}, err
	}
	status := PodStatus{
		ID: p.id, Stage: p.stage, CreatedAt: p.createdAt, Exit: p.exit,
		Config: p.config, Updated: p.updated, Spec: p.started.Spec,
	}
	if (p.stage == PodStarted || p.stage == PodStopping) && p.died == nil {
		status.Pid = p.started.Pid
	}
	return status, nil
}

// containersLocked are those that were created, in the order of their ids.
func (m *Manager) containersLocked() []*Container {
	var all []*Container
	for _, id := range slices.Sorted(maps.Keys(m.containers)) {
		if c := m.containers[id].container; c != nil { // else it is being created
			all = append(all, c)
		}
	}
	return all
}

func (c *Container) member() PodMember {
	m := PodMember{Status: c.Init().Status(), Execs: c.ExecUsage()}
	if cpus, ok := c.CPUSet(); ok {
		m.CPUSet = &cpus
	}
	if told, ok := c.Notified(); ok {
		m.Notified = &told
	}
	return m
}

// PingPod tells whether there is such a pod: the error is errdefs.ErrNotFound if
// not.
func (m *Manager) PingPod(sandboxID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.podLocked(sandboxID)
	return err
}

// PodMetrics are those of the pod's cgroup, which whoever asked for the pod made.
// The error is errdefs.ErrNotFound when there is none.
func (m *Manager) PodMetrics(sandboxID string) (stats.Metrics, error) {
	reader, err := m.podReader(sandboxID)
	if err != nil {
		return nil, err
	}
	metrics, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandboxID, err)
	}
	return metrics, nil
}

func (m *Manager) podReader(sandboxID string) (*stats.Reader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.podLocked(sandboxID)
	if err != nil {
		return nil, err
	}
	if p.stats != nil {
		return p.stats, nil
	}
	if p.pod == nil || p.pod.CgroupPath() == "" {
		return nil, fmt.Errorf("sandbox %q: metrics: it has no cgroup, since its configuration names no cgroup_parent: %w", sandboxID, errdefs.ErrNotFound)
	}
	group, err := cgroup.At(p.pod.CgroupPath())
	if err == nil {
		p.stats, err = stats.New(group)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandboxID, err)
	}
	return p.stats, nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/cpuset"
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
	Spec    *specs.Spec // nil before start
	Members []PodMember // in the order of their ids
}

// PodMember is a container of the pod.
type PodMember struct {
	process.Status
	CPUSet *cpuset.State // nil if it follows no other cgroup
}

// PodStatus never blocks for long.
func (s *Sandbox) PodStatus(sandboxID string, verbose bool) (PodStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.podLocked(sandboxID)
	if err != nil {
		return PodStatus{}, err
	}
	status := PodStatus{ID: p.id, Stage: p.stage, CreatedAt: p.createdAt, Exit: p.exit}
	if (p.stage == PodStarted || p.stage == PodStopping) && p.died == nil {
		status.Pid = p.started.Pid
	}
	if !verbose {
		return status, nil
	}
	status.Config, status.Spec = p.config, p.started.Spec
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		c := s.containers[id].container
		if c == nil {
			continue // it is being created
		}
		m := PodMember{Status: c.Init().Status()}
		if cpus, ok := c.CPUSet(); ok {
			m.CPUSet = &cpus
		}
		status.Members = append(status.Members, m)
	}
	return status, nil
}

// PingPod tells whether there is such a pod: the error is errdefs.ErrNotFound if
// not.
func (s *Sandbox) PingPod(sandboxID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.podLocked(sandboxID)
	return err
}

// PodMetrics are those of the pod's cgroup, which whoever asked for the pod made.
// The error is errdefs.ErrNotFound when there is none.
func (s *Sandbox) PodMetrics(sandboxID string) (stats.Metrics, error) {
	reader, err := s.podReader(sandboxID)
	if err != nil {
		return nil, err
	}
	m, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandboxID, err)
	}
	return m, nil
}

func (s *Sandbox) podReader(sandboxID string) (*stats.Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.podLocked(sandboxID)
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

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup/hierarchy"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stats"
)

// Status is what SandboxStatus answers.
type Status struct {
	ID        string
	Stage     Stage
	Pid       int // 0 before start, and when it is stopped
	CreatedAt time.Time
	Exit      process.Exit // once it is stopped

	// These are set in a verbose status.
	Config     pod.Config
	Updated    Resources         // since it was created
	Spec       *specs.Spec       // nil before start
	Containers []ContainerStatus // in the order of their ids
}

// ContainerStatus is the status of a container of the pod.
type ContainerStatus struct {
	process.Status
	CPUSet   *cpuset.State            // nil if it follows no other cgroup
	Notified *inspect.Notify          // nil if Start does not wait until it is ready
	Execs    map[string]process.Usage // by the id of each exec that has a cgroup of its own and was not deleted
}

// Resources are sums over the containers of a pod in CRI's JSON. They limit nothing here, since the pod's cgroup
// belongs to the client; Status returns them.
type Resources struct {
	Overhead, Resources *json.RawMessage // nil before an update
}

// Update stores the resources, unless they are nil. A containerd that restarts reads them from the status.
func (c *Controller) Update(sandboxID string, resources *Resources) error {
	p, err := c.get(sandboxID)
	if err == nil && resources != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		p.updated = *resources
	}
	return err
}

// Status returns the status of the pod. It never blocks for long.
func (c *Controller) Status(sandboxID string, verbose bool) (Status, error) {
	p, err := c.get(sandboxID)
	if err != nil {
		return Status{}, err
	}
	c.mu.Lock()
	status := Status{ID: p.id, Stage: p.stage, CreatedAt: p.createdAt}
	if p.stage == Stopped {
		status.Exit = *p.exit
	}
	if (p.stage == Running || p.stage == Stopping) && p.died == nil {
		status.Pid = p.started.Pid
	}
	if verbose {
		status.Config, status.Updated, status.Spec = p.config, p.updated, p.started.Spec
	}
	c.mu.Unlock()
	if !verbose {
		return status, nil
	}
	for _, one := range c.tasks.Containers() {
		status.Containers = append(status.Containers, ContainerStatus{
			Status: one.Init().Status(), Execs: one.ExecUsage(), CPUSet: one.CPUSet(), Notified: one.Notified(),
		})
	}
	return status, nil
}

// Inspect returns the pod, or nil if there is none.
func (c *Controller) Inspect() *inspect.Pod {
	p := c.sandbox.Load()
	if p == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &inspect.Pod{ID: p.id, Stage: p.stage.String()}
}

// Ping reports whether there is such a pod: the error is errdefs.ErrNotFound if not.
func (c *Controller) Ping(sandboxID string) error {
	_, err := c.get(sandboxID)
	return err
}

// Metrics returns the metrics of the pod's cgroup. The error is errdefs.ErrNotFound if it has none.
func (c *Controller) Metrics(sandboxID string) (stats.Metrics, error) {
	p, err := c.get(sandboxID)
	if err != nil {
		return nil, err
	}
	path := ""
	c.mu.Lock()
	if p.pod != nil {
		path = p.pod.CgroupPath()
	}
	c.mu.Unlock()
	if path == "" {
		return nil, fmt.Errorf("sandbox %q: metrics: it has no cgroup, since its configuration names no cgroup_parent: %w",
			sandboxID, errdefs.ErrNotFound)
	}
	m, err := readMetrics(path)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandboxID, err)
	}
	return m, nil
}

func readMetrics(cgroupPath string) (stats.Metrics, error) {
	group, err := hierarchy.At(cgroupPath)
	if err != nil {
		return nil, err
	}
	reader, err := stats.New(group)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return reader.Read()
}

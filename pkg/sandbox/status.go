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
	Config    pod.Config
	Updated   Resources   // since it was created
	Spec      *specs.Spec // nil before start
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

// Status returns the status of the pod.
func (c *Controller) Status(sandboxID string) (Status, error) {
	p, err := c.get(sandboxID)
	if err != nil {
		return Status{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	status := Status{
		ID: p.id, Stage: p.stage, CreatedAt: p.createdAt, Config: p.config, Updated: p.updated, Spec: p.started.Spec,
	}
	if p.stage == Stopped {
		status.Exit = *p.exit
	}
	if (p.stage == Running || p.stage == Stopping) && p.died == nil {
		status.Pid = p.started.Pid
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
		return nil, fmt.Errorf("sandbox %q: metrics: no cgroup_parent: %w", sandboxID, errdefs.ErrNotFound)
	}
	var reader *stats.Reader
	group, err := hierarchy.At(path)
	if err == nil {
		reader, err = stats.New(group)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandboxID, err)
	}
	defer reader.Close()
	return reader.Read()
}

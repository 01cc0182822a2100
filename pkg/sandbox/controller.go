// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package sandbox controls the lifecycle of a pod, as containerd's Sandbox API asks for it. A [Controller] makes the
// pod with pkg/pod. It tells task.Manager, the registry of containers, whether containers may be created now, and how
// the pod changes their configuration.
//
// Goroutines: each stop has one, which ends when the containers have ended. One waits for the process that holds the
// pod's namespaces, if that is not the shim, and stops the pod. A timer runs after a failure of ShutdownIdle.
//
// Locks: Controller.mu guards the stage of the pod and is never held over anything that blocks. sandbox.op keeps Start
// and the goroutine of a stop apart. It and task.Manager's lock are taken before mu.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stats"
	"sandbox.internal/shim/pkg/task"
)

// Pod is what a Controller needs of a *pod.Pod.
type Pod interface {
	Start(ctx context.Context) error
	Pid() int
	Spec() *specs.Spec
	Adapt(spec *specs.Spec) error
	Wait() (status int, at time.Time)
	CgroupPath() string
	Close() error
	Save(h *handover.Saver) (*pod.State, error)
	Saved()
	Leave() error
	Stay() error
}

// NewPod makes what the containers of a pod share, except namespaces: pod.Create.
type NewPod func(context.Context, pod.Request) (Pod, error)

// Controller controls the pod of a shim, which has one at most.
type Controller struct {
	tasks   *task.Manager
	newPod  NewPod
	sandbox atomic.Pointer[sandbox] // nil: there is none

	// Act calls what the timer asks for, when that is possible; nil: at once. It is set before the first call.
	Act func(func())

	mu sync.Mutex
	// +checklocks:mu
	retry *time.Timer // calls ShutdownIdle; nil before its first failure
}

// sandbox is a pod and its stage.
type sandbox struct {
	id, bundle string
	config     pod.Config
	createdAt  time.Time
	op         sync.Mutex
	exited     chan struct{} // closed once, when the stage is Stopped

	// Guarded by Controller.mu.
	pod       Pod // nil while it is being created
	stage     Stage
	pid       int           // of the process that holds the namespaces; 0 before start
	spec      *specs.Spec   // nil before start
	stop      *stop         // under way, or nil
	died      *process.Exit // of the process that holds the namespaces; nil while it runs, or if it is the shim
	exit      *process.Exit // nil until all containers have exited; reported when the stage is Stopped
	abandoned bool          // ShutdownIdle has found so
}

// Stage is a stage in the life of a pod. Each one leads to the next, and Created also to Stopping.
type Stage string

// Containers can be created while the pod is Running.
const (
	Creating Stage = "creating" // until Create has succeeded
	Created  Stage = "created"
	Running  Stage = "running"
	Stopping Stage = "stopping" // also after a Stop that failed
	Stopped  Stage = "stopped"
)

// New makes a Controller without a pod.
func New(tasks *task.Manager, newPod NewPod) *Controller {
	return &Controller{tasks: tasks, newPod: newPod}
}

// CreateRequest is CreateSandbox.
type CreateRequest struct {
	ID          string
	Bundle      string // absolute path
	Config      pod.Config
	Annotations map[string]string // added to those of Config
}

// Create makes what the containers of a pod share, except namespaces. When it fails, nothing is left of it.
func (c *Controller) Create(ctx context.Context, r CreateRequest) error {
	if err := task.CheckID("sandbox id", r.ID); err != nil {
		return err
	}
	if err := c.create(ctx, r); err != nil {
		return fmt.Errorf("sandbox %q: %w", r.ID, err)
	}
	return nil
}

func (c *Controller) create(ctx context.Context, r CreateRequest) (err error) {
	if !filepath.IsAbs(r.Bundle) {
		return fmt.Errorf("bundle %q: must be an absolute path: %w", r.Bundle, errdefs.ErrInvalidArgument)
	}
	config := r.Config
	config.Annotations = map[string]string{}
	maps.Copy(config.Annotations, r.Annotations)
	maps.Copy(config.Annotations, r.Config.Annotations)
	if err := c.tasks.CheckAnnotations(config.Annotations); err != nil {
		return err
	}
	p := &sandbox{
		id: r.ID, bundle: filepath.Clean(r.Bundle), config: config, createdAt: time.Now(), exited: make(chan struct{}),
		stage: Creating,
	}
	if err := c.tasks.AddPod(p.id, p.bundle, c.admit(p)); err != nil {
		return err
	}
	c.sandbox.Store(p)
	created := false
	defer func() {
		if !created { // even after a panic: Shutdown has to end the shim
			c.sandbox.Store(nil)
			err = errors.Join(err, c.tasks.RemovePod())
		}
	}()
	made, err := c.newPod(ctx, pod.Request{ID: p.id, Bundle: p.bundle, Config: config})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.pod, p.stage, created = made, Created, true
	return nil
}

func (c *Controller) get(sandboxID string) (*sandbox, error) {
	p := c.sandbox.Load()
	if p == nil || p.id != sandboxID {
		return nil, fmt.Errorf("sandbox %q: not created: %w", sandboxID, errdefs.ErrNotFound)
	}
	return p, nil
}

func (c *Controller) admit(p *sandbox) task.Admit {
	return func() (adapt func(*specs.Spec) error, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.stage != Running {
			return nil, p.refuse("create a container")
		}
		return p.pod.Adapt, nil
	}
}

// refuse returns the error of an operation that the stage does not allow.
func (p *sandbox) refuse(op string) error {
	return fmt.Errorf("sandbox %q: cannot %s: the pod is %v: %w", p.id, op, p.stage, errdefs.ErrFailedPrecondition)
}

// Start makes the pod's namespaces, after which containers can be created. It can be retried if it fails.
func (c *Controller) Start(ctx context.Context, sandboxID string) (Status, error) {
	p, err := c.get(sandboxID)
	if err != nil {
		return Status{}, err
	}
	p.op.Lock()
	defer p.op.Unlock()
	c.mu.Lock()
	if p.stage != Created {
		err = p.refuse("start")
	}
	c.mu.Unlock()
	if err != nil {
		return Status{}, err
	}
	if err := p.pod.Start(ctx); err != nil {
		return Status{}, fmt.Errorf("sandbox %q: %w", p.id, err)
	}
	pid := p.pod.Pid()
	if err := c.tasks.SetPodPid(pid); err != nil {
		log.L.WithError(err).WithField("sandbox", p.id).Warn("record pid")
	}
	c.mu.Lock()
	p.pid, p.spec = pid, p.pod.Spec()
	if p.stage == Created { // else a stop waits for op
		p.stage = Running
	}
	c.mu.Unlock()
	if pid != os.Getpid() {
		go c.awaitDeath(p) //nolint:gosec // ends with that process, which the stop ends at the latest
	}
	return c.Status(sandboxID)
}

// retryTime is the time from a failure of ShutdownIdle, or of the stop of a dead pod, to the next try.
const retryTime = 5 * time.Minute

// awaitDeath stops the pod when the process that holds its namespaces dies: no container can be created without it. A
// failed stop is tried again, since containerd waits for the end of the pod and requests nothing.
func (c *Controller) awaitDeath(p *sandbox) {
	status, at := p.pod.Wait()
	c.mu.Lock()
	p.died = &process.Exit{Status: status, At: at}
	c.mu.Unlock()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		err := c.Stop(ctx, p.id, 0)
		cancel()
		if err == nil || errdefs.IsNotFound(err) {
			return
		}
		log.L.WithError(err).WithField("sandbox", p.id).
			Errorf("stop after the death of the process that holds its namespaces: tried again in %v", retryTime)
		select {
		case <-p.exited:
			return
		case <-time.After(retryTime):
		}
	}
}

// Status is what SandboxStatus answers.
type Status struct {
	ID        string
	Stage     Stage
	Pid       int // 0 before start, and when it is stopped
	CreatedAt time.Time
	Exit      process.Exit // once it is stopped
	Config    pod.Config
	Spec      *specs.Spec // nil before start
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
		ID: p.id, Stage: p.stage, CreatedAt: p.createdAt, Config: p.config, Spec: p.spec,
	}
	if p.stage == Stopped {
		status.Exit = *p.exit
	}
	if (p.stage == Running || p.stage == Stopping) && p.died == nil {
		status.Pid = p.pid
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
	return &inspect.Pod{ID: p.id, Stage: string(p.stage)}
}

// Ping returns errdefs.ErrNotFound if there is no such pod.
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
	group, err := cgroup.At(path)
	if err == nil {
		reader, err = stats.New(group)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandboxID, err)
	}
	defer reader.Close()
	return reader.Read()
}

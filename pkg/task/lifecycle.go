// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stats"
	"sandbox.internal/shim/pkg/stdio"
)

// Start runs the program of init, or an exec. If init reports when it is ready, Start returns then, even after the end
// of ctx. If init is not ready in time, or exits before, Start fails, and its exit is published.
func (m *Manager) Start(ctx context.Context, containerID, execID string) (*process.Process, error) {
	c, err := m.Container(containerID)
	if err != nil {
		return nil, err
	}
	p, err := c.Process(execID)
	if err != nil {
		return nil, err
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	if execID != "" || c.Restored() { // it was ready before it was checkpointed
		return p, nil
	}
	for _, part := range c.parts {
		if part.AwaitReady != nil {
			if err := part.AwaitReady(p); err != nil {
				return nil, fmt.Errorf("container %q: start: %w", containerID, err)
			}
		}
	}
	return p, nil
}

// Exec registers an exec of c; Start runs it.
func (m *Manager) Exec(c *Task, execID string, spec *specs.Process, io stdio.Config) error {
	if err := CheckID("exec id", execID); err != nil {
		return err
	}
	if execID == c.ID() { // its exit would be published as that of the container
		return fmt.Errorf("container %q: exec id %q: must differ from the container's: %w",
			c.ID(), execID, errdefs.ErrInvalidArgument)
	}
	if err := checkProcess("spec", spec); err != nil {
		return fmt.Errorf("container %q: exec %q: %w", c.ID(), execID, err)
	}
	io.ID, io.Host = execID, m.io
	return c.AddExec(execID, spec, io)
}

// Delete removes a container or an exec that has exited or was never started. It can be called again, after a failure
// and after a success that its caller did not wait for. It cancels a Create under way, since containerd deletes what
// its client no longer waits for (core/runtime/v2, TaskManager.Create).
func (m *Manager) Delete(ctx context.Context, containerID, execID string) (process.Status, error) {
	if execID != "" {
		p, err := m.Process(containerID, execID)
		if err != nil {
			return process.Status{}, err
		}
		return p.DeleteExec(ctx)
	}
	if err := m.cancelCreate(ctx, containerID); err != nil {
		return process.Status{}, err
	}
	if status, ok := m.deletedStatus(containerID); ok {
		return status, nil
	}
	c, err := m.Container(containerID)
	if err != nil {
		return process.Status{}, err
	}
	defer m.releaseDeleted(c) // after TaskDelete is published, or Shutdown could come before it
	status, err := c.Delete(ctx)
	if last := c.Init().Status(); err != nil && last.State == process.Deleted { // another Delete was first
		return last, nil
	}
	return status, err
}

// joinsPIDs reports whether a container is in the PID namespace of another, whose end kills it (pid_namespaces(7)).
func joinsPIDs(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace && n.Path != ""
	})
}

// Task is a container and what the Manager knows about it.
type Task struct {
	*process.Container
	cpusets     *cpuset.Reconciler
	settings    settings.Table
	options     options.Options
	annotations map[string]string // of the configuration
	parts       []*extension.Part
	record      *record
	rootfs      *rootfsHook  // nil: the client mounts it
	cpuset      *cpuset.Hook // nil: the container has no source
	stop        process.Stop
	stopIsSet   bool // a setting says how it is to be stopped
	joinsPIDs   bool // it is in the PID namespace of another container

	mu sync.Mutex
	// +checklocks:mu
	metrics stats.Metrics // while it sleeps
	// +checklocks:mu
	read time.Time // of these
	// +checklocks:mu
	stats *stats.Reader // nil until first used: a container to be restored has no cgroup yet
}

// PIDs returns the processes in the container's cgroup. If there are none, or there is no cgroup, it returns the first
// processes of the container, even after its exit, and of its execs: when containerd starts, it deletes a container
// without a pid (core/runtime/v2/shim_load.go), and nobody would learn how it ended. For the same reason the error for
// a container that is to be restored is not errdefs.ErrNotFound.
func (c *Task) PIDs() ([]int, error) {
	if c.Init().Pid() == 0 {
		return nil, fmt.Errorf("container %q: it is restored when it is started, and has no processes before: %w",
			c.ID(), errdefs.ErrFailedPrecondition)
	}
	pids, err := c.Cgroup().Procs()
	if errdefs.IsNotFound(err) || err == nil && len(pids) == 0 {
		first := c.Execs()
		first[c.Init().Pid()] = ""
		return slices.Sorted(maps.Keys(first)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	return pids, nil
}

// staleMetrics is how long the metrics of a container that sleeps are told again.
const staleMetrics = 10 * time.Second

// Metrics returns the metrics of the container's cgroup. The error is errdefs.ErrNotFound when the cgroup is gone, and
// errdefs.ErrNotImplemented for a container without one, as in a user namespace. Those of a container that sleeps are
// old by staleMetrics at most: its processes change nothing, and clients ask each second.
func (c *Task) Metrics() (m stats.Metrics, err error) {
	if c.Cgroup().IsNone() {
		return nil, fmt.Errorf("container %q: metrics: it has no cgroup: %w", c.ID(), errdefs.ErrNotImplemented)
	}
	asleep := c.AsleepSince()
	c.mu.Lock()
	if c.metrics != nil && !asleep.IsZero() && c.read.After(asleep) && time.Since(c.read) < staleMetrics {
		defer c.mu.Unlock()
		return c.metrics, nil
	}
	if c.stats == nil {
		c.stats, err = stats.New(c.Cgroup())
	}
	reader := c.stats
	c.mu.Unlock()
	now := time.Now()
	if err == nil {
		m, err = reader.Read()
	}
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics = nil
	if !asleep.IsZero() {
		c.metrics, c.read = m, now
	}
	return m, nil
}

// CPUSet returns how the container follows the CPUs of another cgroup, or nil if it does not.
func (c *Task) CPUSet() *cpuset.State {
	if state, ok := c.cpusets.State(c.ID()); ok {
		return &state
	}
	return nil
}

// Inspect returns all that is known about the container, with at most maxExecs of its execs. It never blocks.
func (c *Task) Inspect(maxExecs int) inspect.ContainerInfo {
	answer := c.Container.Inspect(maxExecs)
	answer.Settings = c.settings.List(c.annotations, c.options)
	answer.Annotations = c.annotations
	for _, p := range c.parts {
		if p.Inspect != nil {
			p.Inspect(&answer)
		}
	}
	if s := c.CPUSet(); s != nil {
		answer.CPUSet = &inspect.CPUSet{
			Source: s.Source, CPUs: s.CPUs.String(), Mems: s.Mems.String(), Writes: s.Writes, Pinned: s.Pinned,
		}
		if s.Err != nil {
			answer.CPUSet.Error = s.Err.Error()
		}
	}
	return answer
}

// Checkpoint writes the container's state to disk, unless an extension refuses that.
func (c *Task) Checkpoint(ctx context.Context, r process.CheckpointRequest) error {
	err := extension.RefuseCheckpoint(c.parts, "cannot be checkpointed", errdefs.ErrFailedPrecondition)
	if err != nil {
		return fmt.Errorf("container %q: checkpoint: %w", c.ID(), err)
	}
	return c.Container.Checkpoint(ctx, r)
}

// Bounds on how long a stop waits for a Create or a restore that it cancelled, and for the exit of what it killed,
// which pkg/process may publish 10 s late.
const (
	deathTimeout = 10 * time.Second
	exitTimeout  = deathTimeout + 2*time.Second
)

// StopContainers is for a shim that was asked to end. No container is created any more. Containers that have a stop
// signal or timeout are stopped, those in the PID namespace of another one first. It returns when their exits are
// published. The others are left to containerd's delete command (pkg/cleanup).
func (m *Manager) StopContainers() error {
	m.mu.Lock()
	m.closed = true
	var first, then []string
	for id, e := range m.containers {
		if e.container != nil && e.container.joinsPIDs {
			first = append(first, id)
		} else {
			then = append(then, id)
		}
	}
	m.mu.Unlock()
	stop := func(c *Task) error {
		if !c.stopIsSet {
			return nil
		}
		grace, cancel := context.WithTimeout(context.Background(), c.stop.Grace)
		defer cancel()
		return c.Stop(grace)
	}
	return errors.Join(m.stopEach(first, stop), m.stopEach(then, stop))
}

// StopAll stops every container, and cancels every Create under way. The caller ensures that no other container is
// created.
func (m *Manager) StopAll(grace context.Context) error {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.containers))
	m.mu.Unlock()
	return m.stopEach(ids, func(c *Task) error { return c.Stop(grace) })
}

// stopEach cancels the Creates of these containers that are under way, and stops the containers, all concurrently.
func (m *Manager) stopEach(ids []string, stop func(*Task) error) error {
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), deathTimeout)
			defer cancel()
			if errs[i] = m.cancelCreate(ctx, id); errs[i] != nil {
				return
			}
			if c, err := m.Container(id); err == nil { // else its Create was ended, or somebody deleted it
				errs[i] = stop(c)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Stop sends init the stop signal, and kills everything in the container if init has not exited when grace ends. It
// returns when init's exit is published. It is not an error if init is not running. A container that was never started
// is killed immediately, and a restore under way is ended: nobody admits another one (process.Config.MayRestore).
func (c *Task) Stop(grace context.Context) error {
	init := c.Init()
	if init.Pid() == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), deathTimeout)
		defer cancel()
		if err := c.EndRestore(ctx); err != nil {
			return err
		}
	}
	status := init.Status()
	switch {
	case status.Pid == 0 || status.State == process.Stopped || status.State == process.Deleted:
		return nil // not restored, or has exited
	case status.State != process.Created && grace.Err() == nil:
		if err := c.sendStopSignal(grace); err != nil {
			log.L.WithError(err).WithField("container", c.ID()).Warn("stop: signal")
		}
		if _, err := init.Wait(grace); err == nil {
			return nil
		}
	}
	log.L.WithFields(log.Fields{"container": c.ID(), "signal": int(c.stop.Signal)}).Info("stop: killed")
	ctx, cancel := context.WithTimeoutCause(context.Background(), exitTimeout,
		fmt.Errorf("not dead %v after SIGKILL", exitTimeout))
	defer cancel()
	if err := c.KillAll(ctx, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if _, err := init.Wait(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return nil
}

// sendStopSignal sends the stop signal before it thaws, so that the signal is the first thing that a frozen container
// handles. It checks the state after the signal, since a pause may be under way.
func (c *Task) sendStopSignal(grace context.Context) error {
	if err := c.Init().Kill(c.stop.Signal); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if state := c.Init().Status().State; state != process.Paused && state != process.Pausing {
		return nil
	}
	return c.Resume(grace) // fails if it exited or somebody else resumed it; otherwise the kill thaws it
}

// DeleteAbandoned deletes the containers whose bundle is gone and that have exited, or were never restored. containerd
// removes the bundle, and then deletes nothing, when a shim is too slow to answer after a restart of containerd. It
// reports whether one is left that is running or could not be deleted.
func (m *Manager) DeleteAbandoned() bool {
	var left atomic.Bool
	var all sync.WaitGroup
	for _, c := range m.Containers() {
		if _, err := os.Stat(c.Init().Status().Bundle); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		all.Go(func() {
			if err := m.deleteDead(c); err != nil {
				left.Store(true)
				log.L.WithError(err).WithField("container", c.ID()).Warn("delete an abandoned container")
			}
		})
	}
	all.Wait()
	return left.Load()
}

func (m *Manager) deleteDead(c *Task) error {
	ctx, cancel := context.WithTimeout(context.Background(), deathTimeout)
	defer cancel()
	if c.Init().Pid() != 0 { // else it was to be restored, and has no process
		if _, err := c.Init().Wait(ctx); err != nil { // the delete command may just have killed it
			return fmt.Errorf("its bundle is gone, and it lives: %w", err)
		}
	}
	if _, err := m.Delete(ctx, c.ID(), ""); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stats"
	"sandbox.internal/shim/pkg/stdio"
)

// Start runs the program of init, or an exec. If init reports when it is ready, Start returns then. It fails if init is
// not ready in time, or exits before; then init has exited and its exit is published.
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
			return p, c.awaitReady(ctx, part.AwaitReady)
		}
	}
	return p, nil
}

// awaitReady waits until init reports that it is ready. The wait continues in the background when ctx ends: init runs,
// and has to be ready in time even if containerd is restarted meanwhile.
func (c *Task) awaitReady(ctx context.Context, await func(init *process.Process) error) error {
	ready := make(chan error, 1)
	go func() { // ends with the time-out or init's exit at the latest; Start succeeds once, so it is the only one
		err := await(c.Init())
		if err != nil {
			err = fmt.Errorf("container %q: start: %w", c.ID(), err)
			if ctx.Err() != nil {
				log.L.WithError(err).Error("nobody waits for this start any more")
			}
		}
		ready <- err
	}()
	select {
	case err := <-ready:
		return err
	case <-ctx.Done():
		return fmt.Errorf("container %q: start: not ready yet: %w", c.ID(), ctx.Err())
	}
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
	for _, p := range c.parts {
		if p.Exec != nil {
			p.Exec(spec)
		}
	}
	io.ID, io.Host = execID, m.io
	io.SplitStderr = !c.ofCRI
	return c.AddExec(execID, spec, io)
}

// Delete removes a container whose init has exited or was never started, or an exec of it. A failed Delete can be
// retried. A repeated Delete of a container returns the same status: its first caller may have given up, which ttrpc
// does not tell the shim. Delete cancels a Create under way; the container is then not found, unless it had been
// created.
func (m *Manager) Delete(ctx context.Context, containerID, execID string) (process.Status, error) {
	if execID == "" {
		// containerd deletes what its client no longer waits for, and ends the shim only when that worked
		// (core/runtime/v2, TaskManager.Create).
		if err := m.cancelCreate(ctx, containerID); err != nil {
			return process.Status{}, err
		}
		if status, ok := m.deletedStatus(containerID); ok {
			return status, nil
		}
	}
	c, err := m.Container(containerID)
	if err != nil {
		return process.Status{}, err
	}
	if execID != "" {
		p, err := c.Process(execID)
		if err != nil {
			return process.Status{}, err
		}
		return c.DeleteExec(ctx, p)
	}
	defer m.releaseDeleted(c) // after TaskDelete is published, or Shutdown could come before it
	status, err := c.Delete(ctx)
	if last := c.Init().Status(); err != nil && last.State == process.Deleted { // another Delete was first
		return last, nil
	}
	if err == nil {
		c.mu.Lock()
		if c.stats != nil {
			c.stats.Close() // the cgroup is gone, so a Metrics under way opens nothing again
		}
		c.mu.Unlock()
	}
	return status, err
}

// criTypeAnnotation is on every container of containerd's CRI plugin, and on no other (containerd
// internal/cri/annotations).
const criTypeAnnotation = "io.kubernetes.cri.container-type"

// ofCRI reports whether CRI made the container. CRI also makes a fifo for the stderr of an exec with a terminal, but
// never reads it (internal/cri/io/exec_io.go, Attach): with a separate stderr `kubectl exec -it` would show none, and
// no shell would be interactive.
func ofCRI(spec *specs.Spec) bool { return spec.Annotations[criTypeAnnotation] != "" }

// Task is a container and what the Manager knows about it.
type Task struct {
	*process.Container
	cpusets     *cpuset.Reconciler
	settings    settings.Table
	options     options.Options
	annotations map[string]string // of the configuration
	parts       []*extension.Part
	stop        process.Stop
	stopIsSet   bool // a setting says how it is to be stopped
	joinsPIDs   bool // it is in the PID namespace of another container
	ofCRI       bool // containerd's CRI plugin made it

	mu sync.Mutex
	// +checklocks:mu
	stats *stats.Reader // nil until first used: a container to be restored has no cgroup yet
	// +checklocks:mu
	stopBy time.Time // end of the grace of the Stop under way; zero before it
}

// PIDs returns the processes in the container's cgroup or, without one, those that Processes knows. If there are none,
// because init has exited and its exit is or will be published, it returns the pid that init had: when containerd
// starts, it deletes a container without a pid (core/runtime/v2/shim_load.go), and nobody would learn how it ended. A
// cgroup that is a systemd scope is gone by then. A container that is to be restored has no processes before it is
// started; for the same reason the error is then not errdefs.ErrNotFound.
func (c *Task) PIDs() ([]int, error) {
	if c.Restored() && c.Init().Pid() == 0 {
		return nil, fmt.Errorf("container %q: it is restored when it is started, and has no processes before: %w",
			c.ID(), errdefs.ErrFailedPrecondition)
	}
	pids, err := c.Cgroup().Procs()
	if c.Cgroup().IsNone() {
		_, first := c.Owners()
		pids, err = descendants(first), nil
	}
	if init := c.Init().Pid(); init != 0 && (err == nil && len(pids) == 0 || errdefs.IsNotFound(err)) {
		return []int{init}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	return pids, nil
}

// Metrics returns the metrics of the container's cgroup as containerd's message for the cgroup version. The error is
// errdefs.ErrNotFound when the cgroup is gone, and errdefs.ErrNotImplemented for a container that has none, which a
// shim that is root only in a user namespace makes.
func (c *Task) Metrics() (stats.Metrics, error) {
	if c.Cgroup().IsNone() {
		return nil, fmt.Errorf("container %q: metrics: it has no cgroup: %w", c.ID(), errdefs.ErrNotImplemented)
	}
	c.mu.Lock()
	var err error
	if c.stats == nil {
		c.stats, err = stats.New(c.Cgroup())
	}
	reader := c.stats
	c.mu.Unlock()
	var m stats.Metrics
	if err == nil {
		m, err = reader.Read()
	}
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.ID(), err)
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

// Checkpoint writes the container's state to disk, unless an extension refuses that.
func (c *Task) Checkpoint(ctx context.Context, r process.CheckpointRequest) error {
	err := extension.RefuseCheckpoint(c.parts, "cannot be checkpointed", errdefs.ErrFailedPrecondition)
	if err != nil {
		return fmt.Errorf("container %q: checkpoint: %w", c.ID(), err)
	}
	return c.Container.Checkpoint(ctx, r)
}

// deathTimeout bounds how long a stop waits for a container that it killed, and for a Create that it cancelled. A
// process in uninterruptible sleep, a mount or a hook can outlast any bound.
const deathTimeout = 10 * time.Second

// exitTimeout bounds how long a stop waits for the exit of what it killed: init's may be published deathTimeout after
// its death, because of what it leaves behind (pkg/process, remainingTimeout).
const exitTimeout = deathTimeout + 2*time.Second

// StopContainers is for a shim that was asked to end. No container is created any more. Containers that have a stop
// signal or timeout are stopped, each with its own grace period, those in the PID namespace of another one first. It
// returns when their exits are published. The others are left to containerd's delete command (pkg/cleanup).
func (m *Manager) StopContainers(ctx context.Context) error {
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
		return c.Stop(ctx, c.stop.Grace)
	}
	return errors.Join(m.stopEach(ctx, first, stop), m.stopEach(ctx, then, stop))
}

// StopAll stops every container, and cancels every Create under way. Each init gets its stop signal and has until the
// end of grace, then everything is killed. The caller ensures that no other container is created.
func (m *Manager) StopAll(grace context.Context) error {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.containers))
	m.mu.Unlock()
	ctx := context.WithoutCancel(grace)
	return m.stopEach(ctx, ids, func(c *Task) error { return c.stopWithin(ctx, grace) })
}

// stopEach cancels the Creates of these containers that are under way, and stops the containers, all concurrently.
func (m *Manager) stopEach(ctx context.Context, ids []string, stop func(*Task) error) error {
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			ended, cancel := context.WithTimeout(ctx, deathTimeout)
			defer cancel()
			if errs[i] = m.cancelCreate(ended, id); errs[i] != nil {
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

// Stop stops the container: it sends init the stop signal, and kills everything in the container if init has not exited
// after grace; 0 kills immediately. It returns when init's exit is published. It is not an error if init is not
// running. A frozen container is thawed, so that it can handle the signal. One that was never started is killed
// immediately.
//
// A Stop while another one waits joins it: no signal is sent again, and the earlier end of the two grace periods
// counts. When ctx ends, nothing more is done to the container; the next Stop continues with the rest of the grace
// period.
func (c *Task) Stop(ctx context.Context, grace time.Duration) error {
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return c.stopWithin(ctx, graceful)
}

// stopWithin is Stop with a grace period that ends when graceful does.
func (c *Task) stopWithin(ctx, graceful context.Context) error {
	init := c.Init()
	if init.Pid() == 0 { // to be restored, which may be under way
		if err := c.endRestore(ctx); err != nil {
			return err
		}
	}
	switch status := init.Status(); {
	case status.Pid == 0 || status.State == process.Stopped || status.State == process.Deleted:
		return nil // not restored, or has exited
	case status.State == process.Created:
		return c.killAndWait(ctx) // it has no program that could handle a signal
	}
	by, _ := graceful.Deadline()
	c.mu.Lock()
	first := c.stopBy.IsZero()
	if !first && c.stopBy.Before(by) {
		by = c.stopBy
	}
	c.stopBy = by
	c.mu.Unlock()
	wait, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	defer context.AfterFunc(graceful, cancel)()
	if first && graceful.Err() == nil {
		if err := c.sendStopSignal(wait); err != nil {
			log.L.WithError(err).WithField("container", c.ID()).Warn("stop: signal")
		}
	}
	_, err := init.Wait(wait)
	if err == nil || ctx.Err() != nil {
		return err
	}
	log.L.WithFields(log.Fields{"container": c.ID(), "signal": int(c.stop.Signal)}).Info("stop: killed")
	return c.killAndWait(ctx)
}

// endRestore cancels a Start under way that restores the container. None begins afterwards, since neither the pod nor a
// shim that is ending admits one (process.Config.MayRestore).
func (c *Task) endRestore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deathTimeout)
	defer cancel()
	return c.EndRestore(ctx)
}

// sendStopSignal sends the stop signal before it thaws, so that the signal is the first thing that a frozen container
// handles. It checks the state after the signal, since a pause may be under way. ctx ends with the grace period: a
// checkpoint of a paused container keeps it from being thawed for as long as it takes.
func (c *Task) sendStopSignal(ctx context.Context) error {
	if err := c.Init().Kill(c.stop.Signal); err != nil {
		if errdefs.IsNotFound(err) {
			return nil // it ended by itself
		}
		return err
	}
	if state := c.Init().Status().State; state == process.Paused || state == process.Pausing {
		if err := c.Resume(ctx); err != nil {
			// It exited, or somebody else resumed it. Otherwise the kill thaws it.
			log.L.WithError(err).WithField("container", c.ID()).Info("stop: thaw")
		}
	}
	return nil
}

func (c *Task) killAndWait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, exitTimeout, fmt.Errorf("not dead %v after SIGKILL", exitTimeout))
	defer cancel()
	if err := c.KillAll(ctx, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if _, err := c.Init().Wait(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/process"
)

// podStopping is a stop that is under way. Its goroutine ends with it, within the
// grace that callers give and deathTimeout.
type podStopping struct {
	grace context.Context //nolint:containedctx // ends when containers had their time, at its deadline the latest; it is no caller's
	kill  context.CancelFunc
	done  chan struct{} // closed when err is set
	err   error
}

// StopPod ends all containers of the pod, and what the pod itself has: inits get
// the stop signal and until timeout to end, then everything is killed. 0 kills at
// once. No container is created from then on. It returns when all exits were told.
//
// A pod that is stopped is stopped again without effect. A StopPod while another
// waits joins it, and the earlier of the ends of their grace counts. It goes on
// when ctx ends. After a failure it can be called again.
func (m *Manager) StopPod(ctx context.Context, sandboxID string, timeout time.Duration) error {
	m.mu.Lock()
	p, err := m.podLocked(sandboxID)
	if err == nil {
		err = p.checkLocked(podStop)
	}
	if err != nil || p.stage == PodStopped {
		m.mu.Unlock()
		return err
	}
	stop := p.stopping
	first := stop == nil
	if first {
		stop = &podStopping{done: make(chan struct{})}
		stop.grace, stop.kill = context.WithTimeout(context.Background(), timeout)
		p.stopping, p.stage = stop, PodStopping
	}
	if timeout <= 0 {
		stop.kill() // before anybody is asked to end by himself
	}
	if first {
		go m.runStop(p, stop)
	}
	m.mu.Unlock()
	timer := time.AfterFunc(timeout, stop.kill)
	select {
	case <-stop.done:
		timer.Stop()
		return stop.err
	case <-ctx.Done(): // the timer stays
		return fmt.Errorf("sandbox %q: stop: not all is dead yet: %w", p.id, ctx.Err())
	}
}

func (m *Manager) runStop(p *podLife, stop *podStopping) {
	p.turn <- struct{}{} // a start under way ends soon
	defer func() { <-p.turn }()
	defer stop.kill() // releases the context
	err := m.stopContainers(stop.grace)
	if err == nil {
		m.mu.Lock()
		if p.ended == nil { // else Close, which failed, may have killed the process that holds the namespaces
			p.ended = &process.Exit{At: time.Now()}
			if p.died != nil {
				p.ended = p.died
			}
		}
		m.mu.Unlock()
		err = p.pod.Close()
	}
	m.mu.Lock()
	p.stopping = nil
	if err == nil {
		p.stage, p.exit = PodStopped, *p.ended
		close(p.exited)
	} else {
		stop.err = fmt.Errorf("sandbox %q: stop: %w", p.id, err)
	}
	m.mu.Unlock()
	close(stop.done)
}

// stopContainers ends those that exist. No other comes to be: the pod is stopping.
func (m *Manager) stopContainers(grace context.Context) error {
	ids := m.containerIDs()
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { errs[i] = m.stopContainer(grace, id) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (m *Manager) containerIDs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for id := range m.containers {
		ids = append(ids, id)
	}
	return ids
}

func (m *Manager) stopContainer(grace context.Context, containerID string) error {
	death, cancel := context.WithTimeout(context.Background(), deathTimeout)
	defer cancel()
	if err := m.interrupt(death, containerID); err != nil {
		return err
	}
	c, err := m.Container(containerID)
	if err != nil {
		return nil //nolint:nilerr // its Create was ended, or somebody deleted it: there is nothing to stop
	}
	init := c.Init()
	switch status := init.Status(); {
	case status.Pid == 0 || status.State == process.Stopped || status.State == process.Deleted:
		return nil // not restored yet, or dead
	case status.State == process.Created: // which has no program that could end it
	case c.endByItself(grace):
		return nil
	}
	return c.killAndWait(context.Background())
}

// endByItself tells whether the container ended before grace did. A Stop of its own
// that is under way is joined.
func (c *Container) endByItself(grace context.Context) bool {
	if grace.Err() != nil {
		return false
	}
	by, _ := grace.Deadline()
	by, first := c.joinStop(by)
	if first {
		if err := c.askToEnd(grace); err != nil {
			log.L.WithError(err).WithField("container", c.ID()).Warn("stop: signal")
		}
	}
	grace, cancel := context.WithDeadline(grace, by)
	defer cancel()
	_, err := c.Init().Wait(grace)
	return err == nil
}

// WaitPod blocks until the pod is stopped, or ctx ends.
func (m *Manager) WaitPod(ctx context.Context, sandboxID string) (process.Exit, error) {
	m.mu.Lock()
	p, err := m.podLocked(sandboxID)
	m.mu.Unlock()
	if err != nil {
		return process.Exit{}, err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		return process.Exit{}, fmt.Errorf("sandbox %q: wait: %w", sandboxID, ctx.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return p.exit, nil
}

// ShutdownPod stops the pod at once if it runs, deletes the containers that
// nobody deleted, and ends the shim. It can be called again when it fails.
//
// Without a pod, and without a container, it ends the shim as well: containerd asks
// for it when CreateSandbox failed (plugins/sandbox, controllerLocal.cleanupShim).
func (m *Manager) ShutdownPod(ctx context.Context, sandboxID string) error {
	if m.unused() {
		m.Shutdown()
		return nil
	}
	if err := m.StopPod(ctx, sandboxID, 0); err != nil {
		return err
	}
	ids := m.containerIDs()
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			if _, err := m.Delete(ctx, id, ""); err != nil && !errdefs.IsNotFound(err) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sandbox %q: shut down: %w", sandboxID, err)
	}
	m.mu.Lock()
	p, err := m.podLocked(sandboxID)
	m.mu.Unlock()
	if err != nil {
		return err // another one was faster
	}
	p.turn <- struct{}{} // nobody has it for long: the pod is stopped
	err = p.pod.Close()  // once more: what it made for cgroups of containers is in use no more
	<-p.turn
	if err := errors.Join(err, m.members.setPod(sandboxID, p.bundle, false), removeRecord(p.bundle)); err != nil {
		log.L.WithError(err).WithField("sandbox", sandboxID).Warn("remove what the delete command would have read")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// At once: without the pod a container would be admitted, and find the host's namespaces at the pod's pid.
	m.pod = nil
	m.shutdownLocked()
	return nil
}

// unused tells whether nothing was made yet, or all that was made has failed.
func (m *Manager) unused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pod == nil && len(m.containers) == 0 && !m.closed
}

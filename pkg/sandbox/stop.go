// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/process"
)

// stopTimeout bounds a stop without a grace period for which no client waits. task.Manager waits 10 s for a Create that
// it cancelled, and 12 s for a container that it killed.
const stopTimeout = 22 * time.Second

// stop is a Stop under way, which has a goroutine of its own.
type stop struct {
	kill context.CancelFunc // ends the grace period
	done chan struct{}      // closed when err is set
	err  error
}

// Stop stops all containers of the pod, and then the pod. Each init gets its stop signal and has timeout to exit; then
// everything is killed, immediately with a timeout of 0. No container is created from then on. Stop returns when all
// exits have been published. It has no effect on a stopped pod. A Stop while another one waits joins it, and the
// earlier end of their timeouts counts. When ctx ends, the stop continues. After a failure it can be called again.
func (c *Controller) Stop(ctx context.Context, sandboxID string, timeout time.Duration) error {
	p, err := c.get(sandboxID)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if p.stage == Creating {
		err = p.refuse("stop")
	}
	if err != nil || p.stage == Stopped {
		c.mu.Unlock()
		return err
	}
	s := p.stop
	if s == nil {
		// Without a timeout the grace period ends before any container is sent its stop signal.
		grace, kill := context.WithTimeout(context.Background(), timeout)
		s = &stop{kill: kill, done: make(chan struct{})}
		p.stop, p.stage = s, Stopping
		go c.runStop(grace, p, s)
	}
	c.mu.Unlock()
	timer := time.AfterFunc(timeout, s.kill)
	select {
	case <-s.done:
		timer.Stop()
		return s.err
	case <-ctx.Done(): // the timer keeps running
		return fmt.Errorf("sandbox %q: stop: not all is dead yet: %w", p.id, ctx.Err())
	}
}

func (c *Controller) runStop(grace context.Context, p *sandbox, s *stop) {
	p.op.Lock() // a start under way ends soon
	defer p.op.Unlock()
	defer s.kill() // releases the context
	err := c.tasks.StopAll(grace)
	if err == nil {
		c.mu.Lock()
		if p.exit == nil { // else an earlier stop, whose Close failed, may have killed the process that holds the namespaces
			p.exit = cmp.Or(p.died, &process.Exit{At: time.Now()})
		}
		c.mu.Unlock()
		err = p.pod.Close()
	}
	c.mu.Lock()
	p.stop = nil
	if err == nil {
		p.stage = Stopped
		close(p.exited)
	} else {
		s.err = fmt.Errorf("sandbox %q: stop: %w", p.id, err)
	}
	c.mu.Unlock()
	close(s.done)
}

// Wait blocks until the pod is stopped, or ctx ends.
func (c *Controller) Wait(ctx context.Context, sandboxID string) (process.Exit, error) {
	p, err := c.get(sandboxID)
	if err != nil {
		return process.Exit{}, err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		return process.Exit{}, fmt.Errorf("sandbox %q: wait: %w", sandboxID, ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return *p.exit, nil
}

// Shutdown kills the pod if it runs, deletes its containers, and ends the shim, also without a pod: containerd calls it
// when CreateSandbox has failed (plugins/sandbox, controllerLocal.cleanupShim). It can be called again if it fails.
func (c *Controller) Shutdown(ctx context.Context, sandboxID string) error {
	if c.tasks.Shutdown() {
		return nil
	}
	if err := c.Stop(ctx, sandboxID, 0); err != nil {
		return err
	}
	if err := c.deleteContainers(ctx); err != nil {
		return fmt.Errorf("sandbox %q: shut down: %w", sandboxID, err)
	}
	p, err := c.get(sandboxID)
	if err != nil {
		return err // another Shutdown was faster
	}
	c.mu.Lock()
	pid, exit := p.pid, p.exit
	c.mu.Unlock()
	if err := c.tasks.ShutdownPod(pid, exit); err != nil {
		log.L.WithError(err).WithField("sandbox", sandboxID).Warn("the delete command has to remove what is left of the pod")
	}
	c.sandbox.Store(nil)
	return nil
}

func (c *Controller) deleteContainers(ctx context.Context) error {
	all := c.tasks.Containers()
	errs := make([]error, len(all))
	var deletes sync.WaitGroup
	for i, one := range all {
		deletes.Go(func() {
			if _, err := c.tasks.Delete(ctx, one.ID(), ""); err != nil && !errdefs.IsNotFound(err) {
				errs[i] = err
			}
		})
	}
	deletes.Wait()
	return errors.Join(errs...)
}

// ShutdownIdle ends a shim that has had no client for a while, if it has neither containers nor a pod, or only
// abandoned ones. Containers that have exited are abandoned if their bundles are gone (task.Manager.DeleteAbandoned). A
// pod is abandoned if it was never started, since the start follows its creation immediately, or if its bundle is gone,
// which containerd removes when it gives up the pod. After a failure, and as long as an abandoned container is running,
// ShutdownIdle runs again.
func (c *Controller) ShutdownIdle() {
	if c.tasks.DeleteAbandoned() {
		c.shutdownIdleLater()
	}
	if c.tasks.Shutdown() || !c.tasks.Idle() {
		return
	}
	p := c.sandbox.Load()
	if p == nil {
		return
	}
	_, err := os.Stat(p.bundle)
	c.mu.Lock()
	abandoned := p.stage != Creating && (p.stage == Created || p.abandoned || errors.Is(err, os.ErrNotExist))
	p.abandoned = abandoned
	c.mu.Unlock()
	if !abandoned {
		return
	}
	log.L.WithField("sandbox", p.id).Info("shut down an abandoned sandbox")
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.Shutdown(ctx, p.id); err != nil {
		c.shutdownIdleLater()
		log.L.WithError(err).WithField("sandbox", p.id).Errorf("shut down an abandoned sandbox: tried again in %v", retryTime)
	}
}

func (c *Controller) shutdownIdleLater() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retry == nil {
		c.retry = time.AfterFunc(retryTime, func() {
			if c.Act != nil {
				c.Act(c.ShutdownIdle)
				return
			}
			c.ShutdownIdle()
		})
	}
	c.retry.Reset(retryTime)
}

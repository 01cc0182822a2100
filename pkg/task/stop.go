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
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

const (
	// deathTimeout bounds how long Stop waits for what was killed. A process in
	// uninterruptible sleep can outlast any bound.
	deathTimeout = 10 * time.Second
)

// StopGrace is how long a container has to end by itself when it is stopped,
// and false when nobody said it.
func (c *Container) StopGrace() (time.Duration, bool) { return c.stop.Grace, c.stopAsked }

// Stop ends the container: it sends init the stop signal, and kills everything
// in the container when that has not ended it after grace; 0 kills at once. It
// returns when init's exit was told; that of a container that has none is no
// error. A frozen container is thawed, so that it can hear the signal; one that
// was never started has no program that could, and is killed at once.
//
// A Stop while another waits joins it: nothing is signalled again, and the
// earlier of the two ends of grace counts. When ctx ends nothing more is done to
// the container; the next Stop goes on with what is left of the grace.
func (c *Container) Stop(ctx context.Context, grace time.Duration) error {
	init := c.Init()
	status := init.Status()
	if status.Pid == 0 || status.State == process.Stopped || status.State == process.Deleted {
		return nil // not restored yet, or dead
	}
	if status.State == process.Created {
		grace = 0
	}
	by, first := c.joinStop(time.Now().Add(grace))
	if first && grace > 0 {
		if err := c.askToEnd(ctx); err != nil {
			return err
		}
	}
	graceful, cancel := context.WithDeadline(ctx, by)
	_, err := init.Wait(graceful)
	cancel()
	if err == nil || ctx.Err() != nil {
		return err
	}
	log.L.WithFields(log.Fields{"container": c.ID(), "signal": int(c.stop.Signal), "grace": grace}).Info("stop: killed")
	return c.killAndWait(ctx)
}

// joinStop is until when the container may end by itself, and whether nobody
// stopped it before.
func (c *Container) joinStop(by time.Time) (_ time.Time, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.stopBy.IsZero()
	if first || by.Before(c.stopBy) {
		c.stopBy = by
	}
	return c.stopBy, first
}

// askToEnd sends the signal first, so that a container that is thawed does
// nothing but handle it. A pause may be under way meanwhile, so the state is
// looked at after the signal.
func (c *Container) askToEnd(ctx context.Context) error {
	if err := c.Init().Kill(c.stop.Signal); err != nil {
		if errdefs.IsNotFound(err) {
			return nil // it ended by itself
		}
		return err
	}
	if state := c.Init().Status().State; state == process.Paused || state == process.Pausing {
		if err := c.Resume(ctx); err != nil {
			// It ended, or somebody else resumed it. Else the kill thaws it.
			log.L.WithError(err).WithField("container", c.ID()).Info("stop: thaw")
		}
	}
	return nil
}

func (c *Container) killAndWait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, deathTimeout, fmt.Errorf("not dead %v after SIGKILL", deathTimeout))
	defer cancel()
	if err := c.KillAll(ctx, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if _, err := c.Init().Wait(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return nil
}

// StopContainers is for a shim that was told to end: no container is created
// any more, and those for which somebody said how they are stopped are stopped,
// each with its own grace; those in the PID namespace of another before that one. It
// returns when their exits are told. The others are left to containerd, which removes
// what a dead shim left (Remove).
func (m *Manager) StopContainers(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	var creating, first, then []string
	for id, e := range m.containers {
		switch {
		case e.container == nil:
			creating = append(creating, id)
		case e.container.joinsPIDs:
			first = append(first, id)
		default:
			then = append(then, id)
		}
	}
	m.mu.Unlock()
	var others sync.WaitGroup
	var err error
	others.Go(func() { err = m.stopAllAsAsked(ctx, creating) }) // which end now, and may be slow to
	errs := []error{m.stopAllAsAsked(ctx, first), m.stopAllAsAsked(ctx, then)}
	others.Wait()
	return errors.Join(append(errs, err)...)
}

func (m *Manager) stopAllAsAsked(ctx context.Context, ids []string) error {
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { errs[i] = m.stopAsAsked(ctx, id) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (m *Manager) stopAsAsked(ctx context.Context, containerID string) error {
	settled, cancel := context.WithTimeout(ctx, deathTimeout) // a mount or a hook can outlast any bound
	err := m.interrupt(settled, containerID)
	cancel()
	if err != nil {
		return err
	}
	c, err := m.Container(containerID)
	if err != nil {
		return nil //nolint:nilerr // its Create was ended, or somebody deleted it: there is nothing to stop
	}
	grace, asked := c.StopGrace()
	if !asked {
		return nil
	}
	return c.Stop(ctx, grace)
}

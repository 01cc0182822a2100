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
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// deathTimeout bounds how long a stop waits for a container that it killed, and for a Create that it cancelled. A
// process in uninterruptible sleep, a mount or a hook can outlast any bound.
const deathTimeout = 10 * time.Second

// StopContainers is for a shim that was told to end. No container is created any more. Containers that have a stop
// signal or timeout are stopped, each with its own grace; those in the PID namespace of another one before that. It
// returns when their exits are told. The others are left to containerd's delete command (pkg/cleanup).
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
	stop := func(c *Container) error {
		if !c.stopIsSet {
			return nil
		}
		return c.Stop(ctx, c.stop.Grace)
	}
	var others sync.WaitGroup
	var err error
	others.Go(func() { err = m.stopEach(ctx, creating, stop) }) // at once: a Create may be slow to end
	errs := []error{m.stopEach(ctx, first, stop), m.stopEach(ctx, then, stop)}
	others.Wait()
	return errors.Join(append(errs, err)...)
}

// StopAll ends every container, and every Create under way. Inits get their stop signal and until the end of grace,
// then everything is killed. The caller sees to it that no other container is created.
func (m *Manager) StopAll(grace context.Context) error {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.containers))
	m.mu.Unlock()
	ctx := context.WithoutCancel(grace)
	return m.stopEach(ctx, ids, func(c *Container) error { return c.stopWithin(ctx, grace) })
}

// stopEach ends the Creates of these containers that are under way, and stops the containers, all at the same time.
func (m *Manager) stopEach(ctx context.Context, ids []string, stop func(*Container) error) error {
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

// Stop ends the container: it sends init the stop signal, and kills everything in the container when init has not ended
// after grace; 0 kills at once. It returns when init's exit was told. It is no error if init does not run. A frozen
// container is thawed, so that it can handle the signal. One that was never started is killed at once.
//
// A Stop while another waits joins it: nothing is signalled again, and the earlier of the two ends of grace counts.
// When ctx ends nothing more is done to the container; the next Stop goes on with what is left of the grace.
func (c *Container) Stop(ctx context.Context, grace time.Duration) error {
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return c.stopWithin(ctx, graceful)
}

// stopWithin is Stop with a grace that is over when graceful ends.
func (c *Container) stopWithin(ctx, graceful context.Context) error {
	init := c.Init()
	switch status := init.Status(); {
	case status.Pid == 0 || status.State == process.Stopped || status.State == process.Deleted:
		return nil // not restored yet, or dead
	case status.State == process.Created:
		return c.killAndWait(ctx) // it has no program that could handle a signal
	}
	by, _ := graceful.Deadline()
	by, first := c.joinStop(by)
	if first && graceful.Err() == nil {
		if err := c.sendStopSignal(ctx); err != nil {
			log.L.WithError(err).WithField("container", c.ID()).Warn("stop: signal")
		}
	}
	wait, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	defer context.AfterFunc(graceful, cancel)()
	_, err := init.Wait(wait)
	if err == nil || ctx.Err() != nil {
		return err
	}
	log.L.WithFields(log.Fields{"container": c.ID(), "signal": int(c.stop.Signal)}).Info("stop: killed")
	return c.killAndWait(ctx)
}

// joinStop returns until when the container may end by itself, and whether this is the first Stop.
func (c *Container) joinStop(by time.Time) (_ time.Time, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.stopBy.IsZero()
	if first || by.Before(c.stopBy) {
		c.stopBy = by
	}
	return c.stopBy, first
}

// sendStopSignal signals before it thaws, so that the signal is the first thing that a frozen container handles. The
// state is looked at after the signal, since a pause may be under way.
func (c *Container) sendStopSignal(ctx context.Context) error {
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

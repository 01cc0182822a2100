// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/inspect"
)

// Reasons of a use.
const (
	UseStart      = "start"      // of init
	UseExec       = "exec"       // from its start to the end of its output, or its deletion; a signal to it
	UseSignal     = "signal"     // to init or all, SIGKILL too: on cgroup v1 a frozen process does not die
	UseInput      = "input"      // bytes or the end of stdin, or another size of the terminal
	UseChange     = "change"     // an update or a checkpoint
	UsePause      = "pause"      // from Pause to Resume, or the end of the container
	UseConnection = "connection" // to a socket that the container listens on
	UseRequest    = "request"    // by a person
)

// Sleeper freezes a container that nobody uses, and keeps that from everybody: its state is Running.
type Sleeper interface {
	// Use wakes the container, and keeps it awake until done, which is called once.
	Use(reason string) (done func())
	// Sleep puts it to sleep at once, if it is not used.
	Sleep() error
	// Await returns once the container has fallen asleep and woken more often than changes, together.
	Await(ctx context.Context, changes uint64) (*inspect.Idle, error)
	// AsleepSince is the zero time while it is awake, or about to be.
	AsleepSince() time.Time
}

var errNeverSleeps = fmt.Errorf("sleep: the container has no setting idle: %w", errdefs.ErrFailedPrecondition)

// Sleep puts the container to sleep at once. One that is used, or never sleeps, gives errdefs.ErrFailedPrecondition.
func (c *Container) Sleep() (err error) {
	if c.config.Sleeper == nil {
		err = errNeverSleeps
	} else if state := c.init.Status().State; state != Running {
		err = fmt.Errorf("sleep: the container is %v: %w", state, errdefs.ErrFailedPrecondition)
	} else {
		err = c.config.Sleeper.Sleep()
	}
	if err != nil {
		return c.init.wrap(err)
	}
	return nil
}

// AwaitSleep is Await of the container's Sleeper. One without gives errdefs.ErrFailedPrecondition.
func (c *Container) AwaitSleep(ctx context.Context, changes uint64) (i *inspect.Idle, err error) {
	if err = errNeverSleeps; c.config.Sleeper != nil {
		i, err = c.config.Sleeper.Await(ctx, changes)
	}
	if err != nil {
		return nil, c.init.wrap(err)
	}
	return i, nil
}

// AsleepSince is the zero time while the container is awake.
func (c *Container) AsleepSince() (since time.Time) {
	if c.config.Sleeper != nil {
		since = c.config.Sleeper.AsleepSince()
	}
	return since
}

// Wake wakes the container if it sleeps.
func (c *Container) Wake() { c.use(UseRequest)() }

// use is Use of the container's Sleeper.
func (c *Container) use(reason string) (done func()) {
	if c.config.Sleeper == nil {
		return func() {}
	}
	return c.config.Sleeper.Use(reason)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package podsandbox

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/log"
)

// How long after a failure ShutdownIdle is called again: twice as long each time.
const (
	firstRetry = 15 * time.Second
	lastRetry  = 15 * time.Minute
)

// ShutdownIdle ends the shim if it has no container and its pod, if it has one, is abandoned. It is for a shim to which
// nobody has been connected for a while. A pod that runs goes on, for a containerd that comes back; but not one that was
// never started, since its start would have followed at once; and not one whose bundle is gone, since containerd removes
// that when it has given the pod up.
//
// After a failure a timer, which ends with the shim, tries again: nobody else would.
func (c *Controller) ShutdownIdle() {
	if c.tasks.Shutdown() || !c.tasks.Idle() {
		return
	}
	c.mu.Lock()
	p := c.sandbox
	creating := p == nil || p.stage == Creating
	abandoned := !creating && (p.stage == Created || p.retry != nil)
	c.mu.Unlock()
	if creating {
		return
	}
	if _, err := os.Stat(p.bundle); !abandoned && !errors.Is(err, os.ErrNotExist) {
		return
	}
	log.L.WithField("sandbox", p.id).Info("shut down an abandoned sandbox")
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.Shutdown(ctx, p.id); err != nil {
		in := c.retryShutdownIdle(p)
		log.L.WithError(err).WithField("sandbox", p.id).Errorf("shut down an abandoned sandbox: tried again in %v", in)
	}
}

func (c *Controller) retryShutdownIdle(p *sandbox) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.retry == nil {
		p.retryIn = firstRetry
		p.retry = time.AfterFunc(p.retryIn, c.ShutdownIdle)
	} else {
		p.retryIn = min(2*p.retryIn, lastRetry)
		p.retry.Reset(p.retryIn)
	}
	return p.retryIn
}

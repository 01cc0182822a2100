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

// The time from a failure of ShutdownIdle to the next try, which doubles each time.
const (
	firstRetry = 15 * time.Second
	lastRetry  = 15 * time.Minute
)

// ShutdownIdle ends a shim that has had no client for a while, if it has no container and no pod, or an abandoned one.
// A pod that runs is kept for a containerd that comes back. It is abandoned if it was never started, since the start
// follows at once, or if its bundle is gone, which containerd removes when it gives the pod up.
//
// After a failure a timer tries again, since nobody else would. It ends with the shim.
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

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/log"
)

// How long after a failure Unattended is called again: twice as long each time.
const (
	firstRetry = 15 * time.Second
	lastRetry  = 15 * time.Minute
)

// Unattended ends the shim if it has no duty any more. It is for a shim to which
// nobody has been connected for a while. A pod that runs goes on, for a containerd
// that comes back; but not one that was never started, since its start would have
// followed at once; and not one whose bundle is gone, since containerd removes
// that when it has given the pod up.
//
// When the end fails it is tried again after a while, by a timer that ends with the
// shim: nobody else would.
func (s *Sandbox) Unattended() {
	s.mu.Lock()
	p := s.pod
	busy := s.closed || len(s.containers) > 0 || p != nil && p.stage == PodCreating
	forsaken := p != nil && (p.stage == PodCreated || p.again != nil)
	s.mu.Unlock()
	if busy {
		return
	}
	if p == nil {
		s.Shutdown()
		return
	}
	if _, err := os.Stat(p.bundle); errors.Is(err, os.ErrNotExist) {
		forsaken = true
	}
	if !forsaken {
		return
	}
	log.L.WithField("sandbox", p.id).Info("nobody is there for this sandbox any more")
	ctx, cancel := context.WithTimeout(context.Background(), 2*deathTimeout)
	defer cancel()
	if err := s.ShutdownPod(ctx, p.id); err != nil {
		again := s.retryUnattended(p)
		log.L.WithError(err).WithField("sandbox", p.id).Errorf("end a sandbox that is nobody's: tried again in %v", again)
	}
}

func (s *Sandbox) retryUnattended(p *podLife) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.again == nil {
		p.retry = firstRetry
		p.again = time.AfterFunc(p.retry, s.Unattended)
	} else {
		p.retry = min(2*p.retry, lastRetry)
		p.again.Reset(p.retry)
	}
	return p.retry
}

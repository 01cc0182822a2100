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
func (m *Manager) Unattended() {
	m.mu.Lock()
	p := m.pod
	busy := m.closed || len(m.containers) > 0 || p != nil && p.stage == PodCreating
	forsaken := p != nil && (p.stage == PodCreated || p.again != nil)
	m.mu.Unlock()
	if busy {
		return
	}
	if p == nil {
		m.Shutdown()
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
	if err := m.ShutdownPod(ctx, p.id); err != nil {
		again := m.retryUnattended(p)
		log.L.WithError(err).WithField("sandbox", p.id).Errorf("end a sandbox that is nobody's: tried again in %v", again)
	}
}

func (m *Manager) retryUnattended(p *podLife) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.again == nil {
		p.retry = firstRetry
		p.again = time.AfterFunc(p.retry, m.Unattended)
	} else {
		p.retry = min(2*p.retry, lastRetry)
		p.again.Reset(p.retry)
	}
	return p.retry
}

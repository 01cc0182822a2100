// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"

	"sandbox.internal/shim/pkg/process"
)

// removalTime is what a graceful stop leaves of the time that Remove has, for
// the kill and the removal after it.
const removalTime = 1500 * time.Millisecond

// stop asks init, which is not our child, to end, and waits for that as long as
// s and ctx allow. Whatever lives then is for the caller to kill, so nothing
// that goes wrong here is an error.
func stop(ctx context.Context, lc *libcontainer.Container, s process.Stop) {
	grace := s.Grace
	if end, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(end)-removalTime)
	}
	status, err := lc.Status()
	if err != nil || grace <= 0 || status != libcontainer.Running && status != libcontainer.Paused {
		return // one that was never started has no program that could hear the signal
	}
	logger := log.L.WithField("container", lc.ID())
	if err := lc.Signal(s.Signal); err != nil {
		logger.WithError(err).Warn("stop")
		return
	}
	if err := lc.Resume(); err != nil && !errors.Is(err, libcontainer.ErrNotPaused) {
		logger.WithError(err).Warn("stop: thaw")
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_ = awaitDeath(ctx, lc) // it is killed if this is why
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// hungCheckpoint is a container whose checkpoints do not end before the gate is open.
type hungCheckpoint struct {
	process.RuntimeContainer
	gate chan struct{}
}

func (h hungCheckpoint) Checkpoint(process.CheckpointRequest) error {
	<-h.gate
	return nil
}

// A checkpoint of a paused container keeps it from being thawed, and so from handling the stop signal.
func TestStop_KillsAtTheEndOfTheGraceUnderACheckpoint(t *testing.T) {
	inBubble(t, false, func(s stopped) {
		gate := make(chan struct{})
		s.r.RuntimeContainer = hungCheckpoint{gate: gate}
		must(s.T, s.c.Pause(s.Context()))
		checkpointed := make(chan error, 1)
		go func() { checkpointed <- s.c.Checkpoint(s.Context(), process.CheckpointRequest{}) }()
		synctest.Wait()
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- s.c.Stop(s.Context(), 20*time.Second) }()
		time.Sleep(21 * time.Second)
		synctest.Wait()
		s.wantHeard(unix.SIGTERM, unix.SIGKILL)
		close(gate)
		must(s.T, <-checkpointed)
		must(s.T, <-done)
		if took := time.Since(began); took > 22*time.Second {
			s.Errorf("Stop took %v, want the grace of 20s", took)
		}
	})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

func TestRemove_StopsAsItIsTold(t *testing.T) {
	// It tells that it hears, and what it heard, by files, as nobody reads its
	// output any more.
	const hears = "trap 'echo > /heard; exit' QUIT; echo > /ready; while :; do sleep 0.01; done"
	const deaf = "trap 'echo > /heard' QUIT; echo > /ready; while :; do sleep 0.01; done"
	for _, tc := range []struct {
		name, script, stage string
		grace, limit        time.Duration
		heard               bool
		least, most         time.Duration
	}{
		{"one that ends by itself", hears, "running", time.Minute, 15 * time.Second, true, 0, 5 * time.Second},
		{"one that is paused", hears, "paused", time.Minute, 15 * time.Second, true, 0, 5 * time.Second},
		{"one that does not end", deaf, "running", time.Second, 15 * time.Second, true, time.Second, 5 * time.Second},
		{"one that would take all the time there is", deaf, "running", time.Minute, removalReserve + 3*time.Second, true, time.Second, removalReserve + 3*time.Second},
		{"one that is never started", hears, "created", time.Minute, 15 * time.Second, false, 0, 5 * time.Second},
		{"no grace", hears, "running", 0, 15 * time.Second, false, 0, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig(t, "sh", "-c", tc.script)
			switch tc.stage {
			case "created":
				killedShim(t, life{Config: c, Stage: "created"}, "")
			default:
				killedShim(t, life{Config: c, Stage: "running"}, "") // not before Start has removed the fifo, by which libcontainer tells
				eventually(t, "its trap", func() bool { _, err := os.Stat(filepath.Join(c.Rootfs, "ready")); return err == nil })
			}
			if tc.stage == "paused" {
				lc, err := libcontainer.Load(c.Root, c.ID)
				must(t, err)
				must(t, lc.Pause())
			}
			c.Stop = process.Stop{Signal: unix.SIGQUIT, Grace: tc.grace}
			ctx, cancel := context.WithTimeout(t.Context(), tc.limit)
			defer cancel()
			start := time.Now()
			must(t, Remove(ctx, c))
			if took := time.Since(start); took < tc.least || took > tc.most {
				t.Errorf("Remove took %v, want %v to %v", took, tc.least, tc.most)
			}
			_, err := os.Stat(filepath.Join(c.Rootfs, "heard"))
			if heard := !errors.Is(err, os.ErrNotExist); heard != tc.heard {
				t.Errorf("it heard the signal: %t, want %t", heard, tc.heard)
			}
			wantNothingLeft(t, c)
		})
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// openat2(2) gives up on ".." while there is a rename anywhere on the machine.
func TestInit_WhileSomebodyRenamesFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	must(t, os.WriteFile(a, nil, 0o600))
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() { // ends with stop
		for !stop.Load() {
			if err := os.Rename(a, b); err != nil {
				done <- err
				return
			}
			a, b = b, a
		}
		done <- nil
	}()
	for range 20 {
		seen, launched := runInit(t, testRuntime, func(c *process.Config) {
			run := filepath.Join(c.Rootfs, "var/run")
			must(t, os.Remove(run))
			must(t, os.Symlink("../run", run)) // as in Alpine's image
			for _, destination := range []string{"/var/run/secrets/one", "/var/run/secrets/two", "/var/run/three"} {
				mount(specs.Mount{Destination: destination, Type: "tmpfs", Source: "tmpfs"})(c)
			}
		})
		if !launched || seen.Status != 7 {
			t.Errorf("by the launcher: %t, status %d, error %q, want the probe's status 7 by the launcher",
				launched, seen.Status, seen.Err)
		}
	}
	stop.Store(true)
	must(t, <-done)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"
)

// A file that Go's poller does not take, or that cannot be read: the next look comes by the clock, and Close ends it.
func TestInotify_ThatTellsNothingIsNotClosed(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_CREATE|os.O_RDWR, 0o600)
	testx.Must(t, err)
	n := &inotify{file: file, clock: newClock()}
	for range 2 {
		if !n.Wait(time.Millisecond) {
			t.Error("Wait = false before Close")
		}
	}
	ended := make(chan bool)
	go func() { ended <- n.Wait(time.Minute) }() // joined below
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if <-ended || n.Wait(time.Minute) {
		t.Error("Wait = true after Close, want false")
	}
}

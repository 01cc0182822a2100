// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/idmap"
)

// receiver receives in a directory of the test.
func receiver(t *testing.T, check func(Sender) error) (r *Receiver, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "notify")
	r, err := Listen(dir, idmap.Owner{UID: os.Getuid(), GID: os.Getgid()}, func(string, map[string]any) {})
	if err != nil {
		t.Fatal(err)
	}
	r.Receive(check)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, dir
}

func mustSend(t *testing.T, dir string, messages ...string) {
	t.Helper()
	for _, m := range messages {
		if err := send(dir, m); err != nil {
			t.Fatal(err)
		}
	}
}

// On a busy machine a check takes long without using the CPU.
func TestAwait_ReadyBehindACheckThatWaited(t *testing.T) {
	first := true
	r, dir := receiver(t, func(Sender) error {
		if first {
			first = false
			<-time.After(800 * time.Millisecond)
		}
		return nil
	})
	mustSend(t, dir, "STATUS=starting", "READY=1")
	if err := r.Await(time.Second, time.Hour, make(chan struct{})); err != nil {
		t.Errorf("Await = %v, although READY=1 was sent at once", err)
	}
}

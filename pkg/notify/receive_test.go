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

// To check a sender takes longer the more processes a container has. The shim rests nine times as long in between,
// so that a container takes a tenth of a CPU at most.
func TestReceive_RestsInProportionToWhatACheckTakes(t *testing.T) {
	type check struct{ began, ended time.Time }
	checks := make(chan check)
	dir := filepath.Join(t.TempDir(), "notify")
	r, err := Listen(dir, idmap.Owner{UID: os.Getuid(), GID: os.Getgid()}, func(string, map[string]any) {})
	if err != nil {
		t.Fatal(err)
	}
	r.Receive(func(Sender) error {
		began := time.Now()
		<-time.After(20 * time.Millisecond)
		checks <- check{began, time.Now()}
		return nil
	})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	const messages = 4 // which the socket has room for
	for range messages {
		if err := send(dir, "STATUS=x"); err != nil {
			t.Fatal(err)
		}
	}
	last := <-checks
	for range messages - 1 {
		next := <-checks
		if took, rest := last.ended.Sub(last.began), next.began.Sub(last.ended); rest < 9*took {
			t.Errorf("%v of rest after a check that took %v, want %v", rest, took, 9*took)
		}
		last = next
	}
}

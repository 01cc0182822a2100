// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
)

// A container's root owns the directory in the end. It may then be a user of the host, too.
func TestListen_GivesNoFileOfTheHostAway(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	const user = 4711
	parent := t.TempDir()
	dir, secret := filepath.Join(parent, "notify"), filepath.Join(parent, "secret")
	if err := errors.Join(os.Chmod(filepath.Dir(parent), 0o711), os.WriteFile(secret, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { // ends when stop is closed
			defer close(stopped)
			runtime.LockOSThread() // its user is another's, so it ends with the goroutine
			_ = unix.Setfsuid(user)
			name := filepath.Join(dir, Name)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = os.Remove(name) // works once the directory is the user's
				_ = os.Symlink(secret, name)
			}
		}()
		r, err := Listen(dir, idmap.Owner{UID: user, GID: user}, nil)
		close(stop)
		<-stopped
		if err == nil {
			err = r.Close()
		}
		info, statErr := os.Stat(secret)
		if err := errors.Join(err, statErr); err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Fatalf("the file of the host has mode %v, want 0600", info.Mode())
		}
	}
}

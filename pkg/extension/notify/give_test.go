// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

// The owner of the socket may be a user of the host, and reach the directory.
func TestListen_LetsItsOwnerWriteNothingBesideTheSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	const user = 4711
	parent := t.TempDir()
	dir := filepath.Join(parent, "notify")
	testx.Must(t, os.Chmod(filepath.Dir(parent), 0o711))
	r, err := Listen(dir, idmap.Owner{UID: user, GID: user}, log.L)
	testx.Must(t, err)
	tried := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // its user is another's, so it ends with the goroutine
		_ = unix.Setfsuid(user)
		tried <- errors.Join(
			denied("write a file", os.WriteFile(filepath.Join(dir, "x"), nil, 0o600)),
			denied("remove the socket", os.Remove(filepath.Join(dir, Name))),
			denied("chmod the directory", os.Chmod(dir, 0o777)),
			os.Chmod(filepath.Join(dir, Name), 0o600),
		)
	}()
	if err := errors.Join(<-tried, r.Close()); err != nil {
		t.Error(err)
	}
}

func denied(what string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	return fmt.Errorf("%s: %w, want permission denied", what, err)
}

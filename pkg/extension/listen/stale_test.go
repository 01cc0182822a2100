// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutDescriptors calls f while this process cannot get another descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveStale_SaysThatItCannotTell(t *testing.T) {
	root := t.TempDir()
	_, _, err := opened(t, "unix:///s", Network{}, root)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := directory(root, ".", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	now, err := file{dir: dir, name: "s"}.current()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(now.made)
	withoutDescriptors(t, func() {
		if _, err := now.stale(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("stale without descriptors = %v, want %v", err, unix.EMFILE)
		}
		if _, err := now.removeStale(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("removeStale without descriptors = %v, want %v", err, unix.EMFILE)
		}
	})
	if _, err := os.Lstat(filepath.Join(root, "s")); err != nil {
		t.Errorf("the socket is not there: %v", err)
	}
}

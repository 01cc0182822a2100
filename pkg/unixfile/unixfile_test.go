// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package unixfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestWrite_ReaderSeesOneOrTheOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	short, long := "s", strings.Repeat("l", 64)
	testx.Must(t, Write(path, []byte(short)))
	written := make(chan error, 1)
	go func() {
		var err error
		for i := range 500 {
			err = errors.Join(err, Write(path, []byte([]string{short, long}[i%2])))
		}
		written <- err
	}()
	for {
		if got, err := os.ReadFile(path); err != nil || string(got) != short && string(got) != long {
			t.Fatalf("read %q, %v, want one of those written", got, err)
		}
		select {
		case err := <-written:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

func TestWrite_FailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	testx.Must(t, os.Mkdir(taken, 0o700))
	if Write(taken, nil) == nil {
		t.Error("a directory was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v, want the directory alone", left, err)
	}
}

// A container exchanges a directory of its volume for a link to one of the host: before it is opened, and after.
func TestOpenDir_IsNotLedElsewhere(t *testing.T) {
	top := t.TempDir()
	host, volume := filepath.Join(top, "host"), filepath.Join(top, "volume")
	for _, dir := range []string{host, volume, filepath.Join(volume, "dir")} {
		testx.Must(t, os.Mkdir(dir, 0o700))
	}
	dir, err := OpenDir(filepath.Join(volume, "dir"))
	testx.Must(t, err)
	defer dir.Close()
	testx.Write(t, filepath.Join(host, "f"), "host")
	testx.Must(t, os.Rename(filepath.Join(volume, "dir"), filepath.Join(volume, "away")))
	testx.Must(t, os.Symlink(host, filepath.Join(volume, "dir")))
	testx.Must(t, WriteIn(dir, "f", []byte("ours"), 0o644))
	for path, want := range map[string]string{filepath.Join(host, "f"): "host", filepath.Join(volume, "away/f"): "ours"} {
		if got, err := os.ReadFile(path); string(got) != want {
			t.Errorf("%s = %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"dir", "dir/below"} {
		if d, err := OpenDir(filepath.Join(volume, path)); !errors.Is(err, unix.ELOOP) {
			t.Errorf("OpenDir(%s) = %v, %v, want ELOOP", path, d, err)
		}
	}
}

func TestOpenDir_FollowsVarRun(t *testing.T) {
	for path, want := range map[string]string{varRun: "/run", varRun + "/lock": "/run/lock", "/var/runner": ""} {
		info, err := os.Stat(want)
		if want != "" && err != nil {
			continue // this machine has none
		}
		dir, err := OpenDir(path)
		if want == "" {
			if err == nil {
				t.Errorf("OpenDir(%q): no error", path)
			}
			continue
		}
		if err != nil {
			t.Errorf("OpenDir(%q) = %v", path, err)
			continue
		}
		if got, err := dir.Stat("."); err != nil || !os.SameFile(got, info) {
			t.Errorf("OpenDir(%q) is not %s: %v", path, want, err)
		}
		_ = dir.Close()
	}
}

func TestRemove_OfNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := errors.Join(Write(path, nil), Remove(path), Remove(path)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lstat = %v, want that it is gone", err)
	}
}

func TestLock_GivesUpWithItsContext(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(t.Context(), dir)
	testx.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err = Lock(ctx, dir)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Lock of a locked directory = %v, want DeadlineExceeded that names it", err)
	}
	unlock()
	if unlock, err = Lock(t.Context(), dir); err != nil {
		t.Fatalf("Lock after unlock = %v", err)
	}
	unlock()
	if _, err := Lock(t.Context(), dir+"/gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Lock of a directory that is gone = %v, want not exist", err)
	}
}

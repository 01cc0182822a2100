// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nest makes directories in top, each in the one before, of which the path is longer than the kernel takes, as a
// container does: from one to the next. Each asks for list. It returns the files that say so, open.
func nest(t *testing.T, top, list string) (files []*os.File) {
	t.Helper()
	const depth, length = 20, 250
	here, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		name := strings.Repeat("n", length)
		if err := unix.Mkdirat(here, name, 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(here, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(here) // nothing was written
		here = below
		fd, err := unix.Openat(here, string(cpus), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), string(cpus))
		t.Cleanup(func() { _ = file.Close() }) // the test is over
		if _, err := file.WriteString(list + "\n"); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	_ = unix.Close(here) // as above
	return files
}

func TestNested_AreNarrowedDeeperThanAPathCanName(t *testing.T) {
	top := t.TempDir()
	own := filepath.Join(top, string(cpus))
	if err := os.WriteFile(own, []byte("0-3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := nest(t, top, "3")
	nested, err := observeNested(top, cpus)
	if err != nil {
		t.Fatalf("observeNested: %v", err)
	}
	seen := 0
	for in := nested; len(in) == 1 && in[0].requested == must(t, "3"); in = in[0].nested {
		seen++
	}
	if seen != len(files) {
		t.Fatalf("observeNested sees %d cgroups in one another, want %d", seen, len(files))
	}

	f := &follower{Container: Container{Dir: top}}
	destination := node{dir: top, requested: must(t, "0-3"), nested: nested}
	if err := f.apply(plan(cpus, destination, must(t, "0-1"))); err != nil {
		t.Fatalf("apply: %v", err)
	}
	file, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // opened for reading only
	for i, file := range append([]*os.File{file}, files...) {
		buf := make([]byte, 100)
		n, _ := file.ReadAt(buf, 0) // the end is an error
		if got := string(buf[:n]); got != "0-1\n" {
			t.Errorf("at depth %d %s = %q, want 0-1", i, cpus, got)
		}
	}
	if want := 1 + len(files); f.state.Writes != want {
		t.Errorf("%d writes, want %d", f.state.Writes, want)
	}
}

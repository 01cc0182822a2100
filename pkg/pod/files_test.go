// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// The bundle is in a file system that all pods of a node share, and a container writes to the files as it likes.
func TestPodFiles_TakeNoRoomOfTheBundle(t *testing.T) {
	p := create(t, request(t))
	var bundle unix.Stat_t
	testx.Must(t, unix.Stat(p.Bundle, &bundle))
	const most = 2 << 20
	var written int64
	for _, name := range etcFiles {
		path := p.etcMount(name, "rw").Source
		var file unix.Stat_t
		if err := unix.Stat(path, &file); err != nil || file.Dev == bundle.Dev {
			t.Errorf("%s is on the file system of the bundle (%v)", path, err)
		}
		err := os.WriteFile(path, make([]byte, 2*most), 0)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("write of 4 MiB to %s = %v, want %v", path, err, unix.ENOSPC)
		}
		testx.Must(t, unix.Stat(path, &file))
		written += file.Size
	}
	if written < etcRoom || written > most {
		t.Errorf("the files take %d bytes, want about %d", written, etcRoom)
	}

	var fs unix.Statfs_t
	dir := filepath.Join(p.Bundle, etcDir)
	testx.Must(t, unix.Statfs(dir, &fs))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); fs.Type != unix.TMPFS_MAGIC || fs.Flags&want != want {
		t.Errorf("file system of type %#x, flags %#x, want a tmpfs with %#x", fs.Type, fs.Flags, want)
	}
	for i := range 100 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700); errors.Is(err, unix.ENOSPC) {
			return
		}
	}
	t.Error("a hundred more files could be made")
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/process"
)

// leave binds a socket at /vol/sub/s of a root, whose /vol is a volume, and returns what is left to be removed by
// another process, as it reads it.
func leave(t *testing.T, root string, volumes ...Volume) (*Sockets, []File) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "vol/sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	s, b, err := opened(t, "unix:///vol/sub/s", Network{}, root)
	if err != nil {
		t.Fatal(err)
	}
	list, err := b.Left(root, volumes)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	var read []File
	if err := json.Unmarshal(data, &read); err != nil || !cmp.Equal(list, read) {
		t.Fatalf("read back: %v, %+v, want %+v", err, read, list)
	}
	return s, read
}

// bindAt leaves the file of a socket, as a program does that ends.
func bindAt(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func TestRemoveLeft_RemovesOnlyTheSameSocketThatNobodyHasOpen(t *testing.T) {
	const dir, file = "root/vol/sub", "root/vol/sub/s"
	for _, tt := range []struct {
		name   string
		open   bool // init lives
		change func() error
		stays  []string // below the working directory, other than directories
		err    string
	}{
		{"nothing happened", false, func() error { return nil }, nil, ""},
		{"a process has it open", true, func() error { return nil }, []string{file}, "a process has it open"},
		{"it is gone", false, func() error { return os.Remove(file) }, nil, ""},
		{"it has another name", false, func() error { return os.Rename(file, dir+"/t") }, []string{dir + "/t"}, ""},
		{"a file is in its place", false, func() error {
			return errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o600))
		}, []string{file}, ""},
		{"another socket is in its place", false, func() error {
			return errors.Join(os.Remove(file), bindAt(file))
		}, []string{file}, ""},
		{"a link is in its place", false, func() error {
			return errors.Join(os.Rename(file, "host/s"), os.Symlink("../../../host/s", file))
		}, []string{"host/s", file}, ""},
		{"its directory is gone", false, func() error {
			return errors.Join(os.Rename(dir, "host/sub"))
		}, []string{"host/sub/s"}, ""},
		{"a link is in the place of its directory", false, func() error {
			return errors.Join(os.Rename(dir, "host/sub"), os.Symlink("../../host/sub", dir))
		}, []string{"host/sub/s", dir}, "too many levels of symbolic links"},
		{"another directory is in the place, with a name of the same file", false, func() error {
			return errors.Join(os.Rename(dir, "host/sub"), os.Mkdir(dir, 0o700), os.Link("host/sub/s", file))
		}, []string{"host/sub/s", file}, "another directory"},
		{"the volume is elsewhere", false, func() error {
			return errors.Join(os.Rename("root/vol", "host/vol"), os.Symlink("../host", "root/vol"), os.Mkdir("host/sub", 0o700), os.Link("host/vol/sub/s", "host/sub/s"))
		}, []string{"host/sub/s", "host/vol/sub/s", "root/vol"}, "another directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir()) // an address has room for 108 bytes
			if err := errors.Join(os.Mkdir("root", 0o700), os.Mkdir("host", 0o700)); err != nil {
				t.Fatal(err)
			}
			here, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			s, list := leave(t, filepath.Join(here, "root"), Volume{Source: filepath.Join(here, "root/vol"), Destination: "/vol"})
			if len(list) != 1 {
				t.Fatalf("left = %+v, want one", list)
			}
			if !tt.open {
				s.Close()
			}
			if err := tt.change(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err = RemoveLeft(t.Context(), list)
				if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("RemoveLeft = %v, want %q in it", err, tt.err)
				}
			}
			if got := filesBelow(t, "."); !cmp.Equal(got, tt.stays) {
				t.Errorf("files = %q, want %q", got, tt.stays)
			}
		})
	}
}

// filesBelow lists all but directories.
func filesBelow(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestLeft_ListsWhatIsOnTheHost(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(other, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("vol", filepath.Join(root, "linked")); err != nil { // as /var/run is
		t.Fatal(err)
	}
	vol, decoy := Volume{root + "/vol", "/vol"}, Volume{other, "/vol"}
	for _, tt := range []struct {
		name    string
		volumes []Volume
		want    string
	}{
		{"a volume", []Volume{vol}, root + "/vol sub"},
		{"a volume at a link", []Volume{{root + "/vol", "/linked"}}, root + "/vol sub"},
		{"a volume mounted over another", []Volume{decoy, vol}, root + "/vol sub"},
		{"the root file system", []Volume{{root, "/"}}, root + " vol/sub"},
		{"the directory itself", []Volume{{root + "/vol/sub", "/vol/sub/"}}, root + "/vol/sub ."},
		{"a file system of the container's own", []Volume{{"tmpfs", "/vol"}, {"/dev/null", "/vol"}}, ""},
		{"volumes elsewhere", []Volume{decoy, {root + "/vol", "/v"}, {root + "/vol", "/vol/sub/s"}}, ""},
	} {
		s, list := leave(t, root, tt.volumes...)
		got := ""
		for _, f := range list {
			got += f.Volume + " " + f.Dir
		}
		if got != tt.want {
			t.Errorf("%s: left in %q, want %q", tt.name, got, tt.want)
		}
		s.Close() // or the next one could not be bound
	}
}

func TestRemoveLeft_DoesNotWaitForAVolumeThatHangs(t *testing.T) {
	root := t.TempDir()
	s, list := leave(t, root, Volume{root + "/vol", "/vol"})
	s.Close()
	hungfs.Mount(t, root+"/vol")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := RemoveLeft(ctx, list); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("RemoveLeft = %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestIdentity_DiffersFromALaterFileWithTheSameInode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	of := func() Identity {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		id, err := identity(fd)
		if err := errors.Join(err, unix.Close(fd), os.Remove(path)); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := of()
	if first.Born == 0 {
		t.Skip("SKIPPED: needs a file system that knows when a file was made")
	}
	// A number is given again at once, or never; the clock that the kernel stamps files with takes some milliseconds.
	for range 1_000_000 {
		if of() != first {
			return
		}
	}
	t.Errorf("all files are %+v", first)
}

// Delete has the lock of its container meanwhile.
func TestRemoved_DoesNotWaitForAVolumeThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	hungfs.Mount(t, dir)
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	h := &Hook{config: &process.Config{ID: "c1"}, bound: &Bound{files: []file{{open(dir), open(path), "s"}}}}
	for range 2 { // as when Delete is tried again
		ended := make(chan error, 1)
		go func() { ended <- h.Removed() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Removed = %v", err)
			}
		case <-time.After(10 * removeTimeout):
			t.Fatal("Removed hangs")
		}
	}
}

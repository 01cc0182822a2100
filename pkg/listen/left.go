// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Volume is a directory of the host, and its path in the container.
type Volume struct{ Source, Destination string }

// File identifies the file of a unix socket for a later process that has neither the socket nor the container's mounts.
type File struct {
	Volume string // a directory of the host
	Dir    string // below Volume, without links; the container may have changed it since
	Name   string
	In, ID Identity // of the directory and of the file
}

// Identity identifies a file. Where the file system records when a file was made (to some milliseconds), it differs
// from that of a later file with the same inode number.
type Identity struct {
	Dev, Ino uint64
	Born     int64 `json:",omitempty"` // in nanoseconds; 0 where it is not known
}

// identity is that of an open file.
func identity(fd int) (Identity, error) {
	var s unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &s); err != nil {
		return Identity{}, os.NewSyscallError("statx", err)
	}
	id := Identity{Dev: unix.Mkdev(s.Dev_major, s.Dev_minor), Ino: s.Ino}
	if s.Mask&unix.STATX_BTIME != 0 {
		id.Born = s.Btime.Sec*1e9 + int64(s.Btime.Nsec)
	}
	return id, nil
}

// Left lists the files that remain when the container's mounts are gone: those on its volumes. root is as in Bind.
func (b *Bound) Left(root string, volumes []Volume) ([]File, error) {
	top, err := os.Readlink(root)
	if errors.Is(err, unix.EINVAL) { // no link of proc(5)
		top, err = root, nil
	}
	if err != nil {
		return nil, err
	}
	var list []File
	for _, f := range b.files {
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.dir))
		if err != nil {
			return nil, err
		}
		inside, err := filepath.Rel(top, path)
		if err != nil {
			return nil, err
		}
		left := File{Name: f.name}
		if left.In, err = identity(f.dir); err != nil {
			return nil, err
		}
		if left.ID, err = identity(f.made); err != nil {
			return nil, err
		}
		// Where volumes are mounted over each other, the one with the directory counts.
		for _, v := range volumes {
			left.Volume = v.Source
			left.Dir, err = filepath.Rel(v.Destination, filepath.Join("/", inside))
			if err != nil || !filepath.IsLocal(left.Dir) {
				continue
			}
			if dir, err := left.open(); err == nil {
				_ = unix.Close(dir) // nothing was written
				list = append(list, left)
				break
			}
		}
	}
	return list, nil
}

// open opens the directory, unless another replaced it. It follows no link that the container may have made.
func (f File) open() (int, error) {
	dir, err := directory(f.Volume, f.Dir, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return -1, err
	}
	in, err := identity(dir)
	if err == nil && in != f.In {
		err = errors.New("another directory is in its place")
	}
	if err != nil {
		_ = unix.Close(dir) // nothing was written
		return -1, err
	}
	return dir, nil
}

// remove removes the file if it is still the one that Bind made and nobody has it open. Whoever listens there now does
// not do so for the container. Somebody who shares the directory can still replace it at the last moment, as for
// [Bound.Remove].
func (f File) remove() error {
	wrap := func(err error) error {
		return fmt.Errorf("remove socket %q: %w", filepath.Join(f.Volume, f.Dir, f.Name), err)
	}
	dir, err := f.open()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return wrap(err)
	}
	defer unix.Close(dir) //nolint:errcheck // nothing was written
	now, err := file{dir: dir, name: f.Name}.current()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return wrap(err)
	}
	defer unix.Close(now.made) //nolint:errcheck // nothing was written
	switch id, err := identity(now.made); {
	case err != nil:
		return wrap(err)
	case id != f.ID:
		return nil // the container, or another one, made something else
	case !now.stale():
		return wrap(errors.New("a process has it open"))
	}
	now.unlink()
	return nil
}

// RemoveLeft removes the listed files that no process has open. It returns when ctx ends, since a volume may hang.
func RemoveLeft(ctx context.Context, list []File) error {
	done := make(chan error, 1)
	go func() { // ends when the volumes answer
		var errs []error
		for _, f := range list {
			errs = append(errs, f.remove())
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

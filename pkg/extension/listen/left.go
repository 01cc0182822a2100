// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// File is the file of a unix socket, found without the socket and the container's mounts.
type File struct {
	Volume string // a directory of the host
	Dir    string // below Volume; the container may have changed it since
	Name   string
}

// onHost returns the files of sockets in the root file system and on volumes, without regard to links.
func onHost(list []Address, c *process.Config) (files []File) {
	mounts := append([]specs.Mount{{Destination: "/", Source: c.Rootfs}}, c.Spec.Mounts...)
	for _, a := range list {
		if a.Path == "" {
			continue
		}
		innermost := ""
		f := File{Name: path.Base(a.Path)}
		for _, m := range mounts { // one that is no bind mount has no source that is a directory
			at := path.Clean(m.Destination)
			dir, err := filepath.Rel(at, path.Dir(a.Path))
			if err == nil && filepath.IsLocal(dir) && len(at) >= len(innermost) {
				innermost, f.Volume, f.Dir = at, m.Source, dir
			}
		}
		if !filepath.IsAbs(f.Volume) {
			f.Volume = filepath.Join(c.Bundle, f.Volume)
		}
		files = append(files, f)
	}
	return files
}

// removeLeft removes the sockets of list that nobody has open, and follows no link of the container.
func removeLeft(list []File) error {
	var errs []error
	for _, f := range list {
		dir, err := directory(f.Volume, f.Dir, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		if err == nil {
			err = removeStale(dir, f.Name)
			_ = unix.Close(dir) // nothing was written
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove socket %q: %w", filepath.Join(f.Volume, f.Dir, f.Name), err))
		}
	}
	return errors.Join(errs...)
}

// removeStale removes a socket that nobody has open. It tries to connect a datagram socket: a live socket of another
// type refuses with another error, also before it listens, and sees no connection.
func removeStale(dir int, name string) error {
	file, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(file) //nolint:errcheck // nothing was written
	var s unix.Stat_t
	if err := unix.Fstat(file, &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	to := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", file)}
	if errors.Is(unix.Connect(fd, to), unix.ECONNREFUSED) {
		_ = unix.Unlinkat(dir, name, 0) // somebody else may have done it
	}
	return nil
}

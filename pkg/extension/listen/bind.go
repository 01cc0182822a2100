// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// backlog limits connections that nobody has accepted yet. The kernel lowers it to net.core.somaxconn.
const backlog = 4096

// Bound are the files of the unix sockets that Bind bound.
type Bound struct{ files []file }

// file is a file in a directory that is kept open, since nobody can find it again once the container's mounts are gone.
// The file is kept open too, so that no other gets its inode.
type file struct {
	dir, made int // descriptors; made is -1 until the file is open
	name      string
}

// Bind binds the sockets to their addresses and listens. root is the container's root directory as its processes see
// it. owner gets the files of unix sockets. Bind waits for volumes that do not answer; if s is closed meanwhile, it
// fails at the next address.
func Bind(list []Address, s *Sockets, root string, owner idmap.Owner) (_ *Bound, err error) {
	b := &Bound{}
	defer func() {
		if err != nil {
			b.Remove()
		}
	}()
	for i, a := range list {
		if err := control(s.Files[i], func(fd int) error { return b.bind(a, fd, root, owner) }); err != nil {
			return nil, fmt.Errorf("%q: %w", a, err)
		}
	}
	return b, nil
}

// control calls f with the descriptor of a file, which stays open until f returns even if the file is closed meanwhile.
func control(file *os.File, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	closed := conn.Control(func(fd uintptr) { err = f(int(fd)) })
	return cmp.Or(closed, err)
}

func (b *Bound) bind(a Address, fd int, root string, owner idmap.Owner) error {
	var err error
	if a.Path != "" {
		err = b.bindPath(a, fd, root, owner)
	} else {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(a.Inet)))
	}
	if err != nil || a.Type == unix.SOCK_DGRAM {
		return err
	}
	return os.NewSyscallError("listen", unix.Listen(fd, backlog))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func (b *Bound) bindPath(a Address, fd int, root string, owner idmap.Owner) (err error) {
	dir, err := directory(root, path.Dir(a.Path), unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return err
	}
	f := file{dir: dir, made: -1, name: path.Base(a.Path)}
	name := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", f.dir, f.name)}
	bind := func() error { return unix.Bind(fd, name) }
	try := func() error {
		err := bind()
		if errors.Is(err, unix.EOVERFLOW) { // the file system belongs to a user namespace without our user
			err = osthread.Run(func() error { return withFSIDs(owner, bind) })
		}
		return err
	}
	err = try()
	if errors.Is(err, unix.EADDRINUSE) {
		stale, staleErr := f.removeStale()
		if staleErr != nil {
			err = fmt.Errorf("%w, and who has it is not known: %w", err, staleErr)
		} else if stale {
			err = try()
		}
	}
	if err != nil {
		_ = unix.Close(dir) // nothing was written
		return os.NewSyscallError("bind", err)
	}
	// By a descriptor, since somebody who shares the directory may replace the file.
	f, err = f.current()
	b.files = append(b.files, f)
	if err != nil {
		return fmt.Errorf("open the socket: %w", err)
	}
	if _, ok := socket(f.made, "", unix.AT_EMPTY_PATH); !ok {
		return errors.New("something else replaced the socket")
	}
	if err := unix.Fchownat(f.made, "", owner.UID, owner.GID, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("change owner: %w", err)
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.made), a.Mode)
}

// socket stats a file and reports whether it is a socket.
func socket(dir int, name string, flags int) (s unix.Stat_t, ok bool) {
	err := unix.Fstatat(dir, name, &s, unix.AT_SYMLINK_NOFOLLOW|flags)
	return s, err == nil && s.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// directory opens the directory name below root, by openat2(2) with resolve.
func directory(root, name string, resolve uint64) (int, error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top) //nolint:errcheck // nothing was written
	fd, err := unixfile.Openat2(top, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open in the container", Path: name, Err: err}
	}
	return fd, nil
}

// current returns f with the file that has its name now.
func (f file) current() (file, error) {
	var err error
	f.made, err = unix.Openat(f.dir, f.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return f, err
}

// removeStale removes f if nobody has it open any more, and reports whether it did.
func (f file) removeStale() (bool, error) {
	now, err := f.current()
	if err != nil {
		return false, err
	}
	defer unix.Close(now.made) //nolint:errcheck // nothing was written
	stale, err := now.stale()
	if stale {
		now.unlink()
	}
	return stale, err
}

// stale reports whether f is a socket that nobody has open any more, as after a container was killed together with its
// shim. It tries to connect a datagram socket: a live socket of another type refuses that in its own way, also before
// it listens, and sees no connection.
func (f file) stale() (bool, error) {
	if _, ok := socket(f.made, "", unix.AT_EMPTY_PATH); !ok {
		return false, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	name := fmt.Sprintf("/proc/self/fd/%d", f.made)
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: name}), unix.ECONNREFUSED), nil
}

// unlink removes f, unless something else replaced it.
func (f file) unlink() {
	ours, made := socket(f.made, "", unix.AT_EMPTY_PATH)
	now, exists := socket(f.dir, f.name, 0)
	if made && exists && ours.Ino == now.Ino && ours.Dev == now.Dev {
		_ = unix.Unlinkat(f.dir, f.name, 0) // somebody else may have done it
	}
}

// Remove removes the files that Bind made. It may be called again.
func (b *Bound) Remove() {
	for _, f := range b.files {
		f.unlink()
		_ = unix.Close(f.made) // nothing was written; -1 is harmless
		_ = unix.Close(f.dir)
	}
	b.files = nil
}

// withFSIDs calls f with the thread's file system ids set to owner's, to whom new files then belong. The thread keeps
// its privileges. It must end after that.
func withFSIDs(owner idmap.Owner, f func() error) (err error) {
	thread := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&thread, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return os.NewSyscallError("prctl(PR_GET_DUMPABLE)", err)
	}
	if dumpable == 1 { // a change of the user clears this for the whole process (proc_pid(5)); no other value can be set
		defer func() { err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) }()
	}
	if err := errors.Join(unix.Setfsgid(owner.GID), unix.Setfsuid(owner.UID)); err != nil {
		return err
	}
	// The change drops the capabilities over files (capabilities(7)), which the directory may need.
	if err := unix.Capset(&thread, &caps[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return f()
}

// File is the file of a unix socket, for a later process that has neither the socket nor the container's mounts.
type File struct {
	Volume string // a directory of the host
	Dir    string // below Volume; the container may have changed it since
	Name   string
}

// onHost returns the files of sockets in the root file system and on volumes, by their paths without regard to links.
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

// remove removes the file if it is a socket that nobody has open. It follows no link that the container may have made.
func (f File) remove() error {
	dir, err := directory(f.Volume, f.Dir, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return err
	}
	defer unix.Close(dir) //nolint:errcheck // nothing was written
	_, err = file{dir: dir, name: f.Name}.removeStale()
	return err
}

// removeLeft removes those of list.
func removeLeft(list []File) error {
	var errs []error
	for _, f := range list {
		if err := f.remove(); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove socket %q: %w", filepath.Join(f.Volume, f.Dir, f.Name), err))
		}
	}
	return errors.Join(errs...)
}

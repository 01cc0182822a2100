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
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/unixfile"
)

// Network is the network namespace of a container.
type Network struct {
	Path string // that of the namespace; "" for the host's
	Own  bool   // to be made by Open, and kept for the container if there are TCP or UDP sockets
}

// Sockets are the sockets of a container, in the order of its addresses.
type Sockets []*os.File

// Close closes all.
func (s Sockets) Close() {
	for _, f := range s {
		_ = f.Close() // nothing was written
	}
}

// Inet reports whether there are TCP or UDP sockets, whose addresses belong to the network namespace.
func Inet(list []Address) bool {
	return slices.ContainsFunc(list, func(a Address) bool { return a.Path == "" })
}

// Open makes the sockets of a list, without addresses yet. Unix sockets are in the container's network namespace too:
// ioctl(2) on a socket reaches the interfaces of its namespace (netdevice(7)) and, with CAP_NET_ADMIN, the namespace
// itself (SIOCGSKNS). own is the network namespace that was made for the container, or nil.
func Open(list []Address, network Network) (s Sockets, own *os.File, err error) {
	err = osthread.Run(func() (err error) {
		if own, err = network.enter(Inet(list)); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		for _, a := range list {
			f, err := socket(a)
			if err != nil {
				return fmt.Errorf("%q: %w", a, err)
			}
			s = append(s, f)
		}
		return nil
	})
	if err != nil {
		s.Close()
		_ = own.Close() // nothing was written; nil is harmless
		return nil, nil, err
	}
	return s, own, nil
}

// enter moves the thread to the network, and returns a namespace that it makes if the container is to have it.
func (n Network) enter(keep bool) (*os.File, error) {
	if n.Path != "" {
		ns, err := os.OpenFile(n.Path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe does not wait for a writer
		if err != nil {
			return nil, err
		}
		defer ns.Close() //nolint:errcheck // nothing was written
		return nil, os.NewSyscallError("setns "+n.Path, unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
	}
	if !n.Own {
		return nil, nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil || !keep {
		return nil, os.NewSyscallError("unshare", err)
	}
	// As libcontainer does in a namespace that it makes.
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
		return nil, fmt.Errorf("set interface lo up: %w", err)
	}
	return os.Open("/proc/thread-self/ns/net")
}

func socket(a Address) (*os.File, error) {
	family := unix.AF_UNIX
	if a.Path == "" {
		family = unix.AF_INET6
		if a.Inet.Addr().Is4() {
			family = unix.AF_INET
		}
	}
	fd, err := unix.Socket(family, a.Type|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if a.Path == "" && a.Type == unix.SOCK_STREAM {
		// Closed connections of an earlier server do not keep the port. It cannot fail.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	return os.NewFile(uintptr(fd), a.source), nil
}

// backlog is lowered by the kernel to net.core.somaxconn.
const backlog = 4096

// Files are the files of bound unix sockets.
type Files []file

type file struct {
	dir  int
	name string
	made unix.Stat_t
}

// Remove removes those that nobody has replaced, and waits for volumes that do not answer.
func (l Files) Remove() {
	for _, f := range l {
		var now unix.Stat_t
		err := unix.Fstatat(f.dir, f.name, &now, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && now.Dev == f.made.Dev && now.Ino == f.made.Ino {
			_ = unix.Unlinkat(f.dir, f.name, 0) // it stays on a file system that is read-only by now
		}
		_ = unix.Close(f.dir) // nothing was written
	}
}

// Bind binds the sockets and listens. root is the container's root directory as its processes see it. owner makes the
// files of unix sockets. Bind waits for volumes that do not answer; after a Close it fails at the next address. When it
// fails, it leaves no file.
func Bind(list []Address, s Sockets, root string, owner idmap.Owner) (files Files, err error) {
	defer func() {
		if err != nil {
			files.Remove()
			files = nil
		}
	}()
	err = osthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		unix.Umask(0) // of this thread
		for i, a := range list {
			conn, err := s[i].SyscallConn()
			if err == nil {
				closed := conn.Control(func(fd uintptr) { err = bind(a, int(fd), root, owner, &files) })
				err = cmp.Or(closed, err)
			}
			if err != nil {
				return fmt.Errorf("%q: %w", a, err)
			}
		}
		return nil
	})
	return files, err
}

func bind(a Address, fd int, root string, owner idmap.Owner, files *Files) error {
	var err error
	if a.Path != "" {
		var f file
		if f, err = bindPath(a, fd, root, owner); err == nil {
			*files = append(*files, f)
		}
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

// bindPath makes the file with its owner, by the ids of the thread, and its mode, by that of the socket: others who
// share the directory could exchange the file before a chown(2).
func bindPath(a Address, fd int, root string, owner idmap.Owner) (f file, err error) {
	dir, err := directory(root, path.Dir(a.Path))
	if err != nil {
		return f, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(dir) // nothing was written
		}
	}()
	name := path.Base(a.Path)
	if err := removeStale(dir, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return f, fmt.Errorf("remove a socket that was left: %w", err)
	}
	err = errors.Join(unix.Fchmod(fd, a.Mode), unix.Setfsgid(owner.GID), unix.Setfsuid(owner.UID))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)})
	}
	err = os.NewSyscallError("bind", errors.Join(err, unix.Setfsuid(os.Geteuid()), unix.Setfsgid(os.Getegid())))
	f = file{dir: dir, name: name}
	if err == nil {
		err = unix.Fstatat(dir, name, &f.made, unix.AT_SYMLINK_NOFOLLOW)
	}
	return f, err
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

// directory opens the directory name in the container's root.
func directory(root, name string) (int, error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top) //nolint:errcheck // nothing was written
	fd, err := unixfile.Openat2(top, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open in the container", Path: name, Err: err}
	}
	return fd, nil
}

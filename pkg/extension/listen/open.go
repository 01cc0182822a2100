// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
)

// Network is the network namespace of a container.
type Network struct {
	Path string // that of the namespace; "" for the host's
	Own  bool   // to be made by Open
}

// Sockets are the sockets of a container, in the order of its addresses.
type Sockets struct {
	Files []*os.File
	// Namespace is the network namespace that was made for the container, or nil.
	Namespace *os.File
}

// Close closes all.
func (s *Sockets) Close() {
	for _, f := range append(slices.Clone(s.Files), s.Namespace) {
		_ = f.Close() // nothing was written; nil is harmless
	}
}

// Inet reports whether there are TCP or UDP sockets, whose addresses belong to the network namespace.
func Inet(list []Address) bool {
	return slices.ContainsFunc(list, func(a Address) bool { return a.Path == "" })
}

// Open makes the sockets of a list, without addresses yet.
//
// Even those with a path are in the host's network namespace only if the container is: ioctl(2) on any socket reaches
// the interfaces of its namespace (netdevice(7)) and, with CAP_NET_ADMIN, the namespace itself (SIOCGSKNS). If all have
// paths, the namespace that is made is theirs alone, and need not be the container's.
func Open(list []Address, network Network) (s *Sockets, err error) {
	if network == (Network{}) {
		return open(list)
	}
	err = osthread.Run(func() (err error) {
		s, err = openIn(list, network)
		return err
	})
	return s, err
}

// openIn opens the sockets in network, on a thread that ends after it.
func openIn(list []Address, network Network) (s *Sockets, err error) {
	if !network.Own {
		ns, err := os.OpenFile(network.Path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe does not wait for a writer
		if err != nil {
			return nil, fmt.Errorf("network namespace: %w", err)
		}
		defer ns.Close() //nolint:errcheck // nothing was written
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("network namespace: setns %s: %w", network.Path, err)
		}
		return open(list)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("unshare(CLONE_NEWNET)", err)
	}
	if !Inet(list) {
		return open(list)
	}
	// As libcontainer does in a namespace that it makes.
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}); err != nil {
		return nil, fmt.Errorf("set interface lo up: %w", err)
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	if s, err = open(list); err != nil {
		_ = ns.Close() // nothing was written
		return nil, err
	}
	s.Namespace = ns
	return s, nil
}

func open(list []Address) (*Sockets, error) {
	s := &Sockets{}
	for _, a := range list {
		family := unix.AF_UNIX
		switch {
		case a.Path != "":
		case a.Inet.Addr().Is4():
			family = unix.AF_INET
		default:
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, a.Type|unix.SOCK_CLOEXEC, 0)
		if err = os.NewSyscallError("socket", err); err == nil {
			s.Files = append(s.Files, os.NewFile(uintptr(fd), a.source))
			if a.Path == "" && a.Type == unix.SOCK_STREAM {
				// As servers do, so that connections of one that has just ended do not keep the port.
				err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				err = os.NewSyscallError("setsockopt SO_REUSEADDR", err)
			}
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("%q: %w", a, err)
		}
	}
	return s, nil
}

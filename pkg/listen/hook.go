// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package listen opens the sockets that a container's first process finds open (socket activation, sd_listen_fds(3)).
//
// [Open] makes the sockets before the container, in its network namespace, since init can get descriptors only at its
// start. [Bind] binds them when the container is set up but its program does not run yet: paths are resolved among its
// mounts, and what its hooks did to its network counts.
//
// [Bound.Remove] removes the files of those with a path. A process that has only the list of [Bound.Left] does so with
// [RemoveLeft].
//
// Open runs a goroutine on a thread of its own, which changes namespace and ends with it; Open waits for its answer.
// Hook and RemoveLeft run some that end when the volumes answer. There are no locks.
//
// Promises: whatever the container's file system holds, a path never leads out of it. If Open or Bind fails, what it
// made is gone.
package listen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

// Hook is the [process.Hook] of a container that finds sockets open.
type Hook struct {
	process.NoHook
	setting settings.Value
	list    []Address
	config  *process.Config // from Prepare on
	sockets *Sockets        // from Prepare until init has them
	bound   *Bound          // from Created on
	removed chan struct{}   // closed when the files of bound are removed; nil before the first try
	left    []File
}

// Read is [Parse] of a setting that is set. Its errors are of class errdefs.ErrInvalidArgument.
func Read(setting settings.Value) ([]Address, error) {
	list, err := Parse(setting.Text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", setting.Key, err, errdefs.ErrInvalidArgument)
	}
	return list, nil
}

// NewHook returns the hook for a setting that is set.
func NewHook(setting settings.Value) *Hook { return &Hook{setting: setting} }

// Left returns the files of sockets on the container's volumes and in its root file system. The delete command removes
// them if the shim cannot.
func (h *Hook) Left() []File { return h.left }

// Prepare implements [process.Hook].
func (h *Hook) Prepare(ctx context.Context, c *process.Config) (err error) {
	h.config = c
	if h.list, err = Read(h.setting); err != nil {
		return err
	}
	network, made, err := h.network()
	if err != nil {
		return err
	}
	if h.sockets, err = Open(ctx, h.list, network); err != nil {
		return h.failed(err)
	}
	if made != nil {
		// Not through /proc/self: the container's first stage opens it.
		made.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.sockets.Namespace.Fd())
	}
	env(h.list, c.SetEnv)
	c.Files = h.sockets.Files
	return nil
}

// network returns the network namespace of the sockets. If Open makes it for the container, made is the namespace in
// the configuration that has to become it.
func (h *Hook) network() (n Network, made *specs.LinuxNamespace, err error) {
	refuse := func(why string) (Network, *specs.LinuxNamespace, error) {
		return n, nil, fmt.Errorf("%s %q: %s: %w", h.setting.Key, h.setting.Text, why, errdefs.ErrInvalidArgument)
	}
	if h.config.Checkpoint != "" {
		return refuse("a container that is restored has its sockets already")
	}
	namespaces := map[specs.LinuxNamespaceType]*specs.LinuxNamespace{}
	for i, n := range h.config.Spec.Linux.Namespaces {
		namespaces[n.Type] = &h.config.Spec.Linux.Namespaces[i]
	}
	if pids := namespaces[specs.PIDNamespace]; pids == nil || pids.Path != "" {
		return refuse("needs a PID namespace of the container's own, as LISTEN_PID is 1")
	}
	own := namespaces[specs.NetworkNamespace]
	switch {
	case own == nil:
		return Network{}, nil, nil
	case own.Path != "":
		return Network{Path: own.Path}, nil, nil
	case !Inet(h.list):
		return Network{Own: true}, nil, nil
	case namespaces[specs.UserNamespace] != nil:
		// The network namespace is made before the user namespace, and would belong to the host's.
		return refuse("TCP and UDP sockets are not possible if the container has both a user namespace and a network " +
			"namespace of its own: use unix sockets, or let it join a network namespace by path")
	}
	return Network{Own: true}, own, nil
}

// bindTimeout bounds how long Create waits for the volumes of the sockets.
const bindTimeout = 5 * time.Second

// Created implements [process.Hook].
func (h *Hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	defer h.closeSockets() // init has its own
	// Once the wait was given up, the pid may be another's.
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init.Pid()), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return h.failed(err)
	}
	linux := h.config.Spec.Linux
	list, sockets, owner := h.list, h.sockets, idmap.Root(linux.UIDMappings, linux.GIDMappings)
	volumes := h.volumes()
	bound := make(chan *Bound, 1)
	var left []File
	var leftErr error
	err = unixfile.Within(bindTimeout, func() error {
		defer root.Close() //nolint:errcheck // opened for its name only
		path := fmt.Sprintf("/proc/self/fd/%d", root.Fd())
		b, err := Bind(list, sockets, path, owner)
		if err == nil {
			left, leftErr = b.Left(path, volumes)
		}
		bound <- b
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		go func() { // ends when the volumes answer
			if b := <-bound; b != nil {
				b.Remove()
			}
		}()
		return fmt.Errorf("%s %q: %w", h.setting.Key, h.setting.Text, err)
	}
	if err != nil {
		return h.failed(err)
	}
	h.bound, h.left = <-bound, left
	if leftErr != nil {
		log.L.WithError(leftErr).WithField("container", h.config.ID).Warn("find sockets on volumes for the delete command")
	}
	return nil
}

// volumes returns the directories of the host in which the container can have sockets. A mount that is none has none.
func (h *Hook) volumes() []Volume {
	volumes := []Volume{{Source: h.config.Rootfs, Destination: "/"}}
	for _, m := range h.config.Spec.Mounts {
		if !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(h.config.Bundle, m.Source)
		}
		volumes = append(volumes, Volume{Source: m.Source, Destination: m.Destination})
	}
	return volumes
}

func (h *Hook) failed(err error) error {
	return fmt.Errorf("%s: %w: %w", h.setting.Key, err, errdefs.ErrFailedPrecondition)
}

func (h *Hook) closeSockets() {
	if h.sockets != nil {
		h.sockets.Close()
		h.sockets, h.config.Files = nil, nil
	}
}

// Removed implements [process.Hook].
func (h *Hook) Removed() error {
	h.closeSockets()
	if h.bound != nil {
		h.removeFiles()
	}
	return nil
}

// removeTimeout bounds how long Delete waits for the volumes of the sockets.
const removeTimeout = 2 * time.Second

// removeFiles removes the files of the sockets. Those on a volume that does not answer are left to a goroutine, which
// ends when it does: a file that stays is no reason to keep the container.
func (h *Hook) removeFiles() {
	if h.removed == nil {
		removed, bound := make(chan struct{}), h.bound
		go func() { defer close(removed); bound.Remove() }()
		h.removed = removed
	}
	select {
	case <-h.removed:
	case <-time.After(removeTimeout):
		log.L.WithField("container", h.config.ID).Warnf("sockets on volumes are not removed after %v", removeTimeout)
	}
}

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
//
// Opening the path of a namespace may block as long as its file system likes. If ctx ends first, what is made is
// closed.
func Open(ctx context.Context, list []Address, network Network) (*Sockets, error) {
	if network == (Network{}) {
		return open(list)
	}
	type answer struct {
		sockets *Sockets
		err     error
	}
	done := make(chan answer)
	go func() { // ends after openIn
		var a answer
		a.err = osthread.Run(func() (err error) {
			a.sockets, err = openIn(list, network)
			return err
		})
		select {
		case done <- a:
		case <-ctx.Done():
			if a.err == nil {
				a.sockets.Close()
			}
		}
	}()
	select {
	case a := <-done:
		return a.sockets, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("network namespace %q: %w", network.Path, ctx.Err())
	}
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

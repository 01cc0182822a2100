// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package listen opens the sockets that a container's first process finds open (socket activation, sd_listen_fds(3)).
//
// [Open] makes the sockets before the container, in its network namespace, since init can get descriptors only at its
// start. [Bind] binds them when the container is set up but its program does not run yet: paths are resolved among its
// mounts, and what its hooks did to its network counts.
//
// [Bound.Remove] removes the files of those with a path. A process that has nothing but the list of [Bound.Left] does
// it by [RemoveLeft].
//
// Open runs a goroutine on a thread of its own, which changes namespace and ends with it; Open waits for its answer.
// RemoveLeft runs one that ends when the volumes answer. There are no locks.
//
// Promises: whatever the container's file system holds, a path never leads out of it. When Open or Bind fails, what it
// made is gone.
package listen

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Hook is the [process.Hook] of a container that finds sockets open.
type Hook struct {
	process.NoHook
	setting settings.Value
	list    []Address
	config  *process.Config // from Prepare on
	sockets *Sockets        // from Prepare until init has them
	bound   *Bound          // from Created on
	left    []File
}

// NewHook returns the hook for a setting that is set.
func NewHook(setting settings.Value) *Hook { return &Hook{setting: setting} }

// Left returns the files of sockets on the container's volumes and in its root file system. The delete command removes
// them if the shim cannot.
func (h *Hook) Left() []File { return h.left }

// Prepare implements [process.Hook].
func (h *Hook) Prepare(ctx context.Context, c *process.Config) (err error) {
	h.config = c
	if h.list, err = Parse(h.setting.Text); err != nil {
		return fmt.Errorf("%s: %w: %w", h.setting.Key, err, errdefs.ErrInvalidArgument)
	}
	network, made, err := h.network()
	if err != nil {
		return err
	}
	if h.sockets, err = Open(ctx, h.list, network); err != nil {
		return h.failed(err)
	}
	if made != nil {
		// Not by /proc/self: the container's first stage opens it.
		made.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.sockets.Namespace.Fd())
	}
	env := Env(h.list)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.SetEnv(name, env[name])
	}
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
		return refuse("TCP and UDP cannot be had with a user namespace and a network namespace that are " +
			"both the container's own")
	}
	return Network{Own: true}, own, nil
}

// Created implements [process.Hook].
func (h *Hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) (err error) {
	defer h.closeSockets() // init has its own
	linux := h.config.Spec.Linux
	root := fmt.Sprintf("/proc/%d/root", init.Pid())
	if h.bound, err = Bind(h.list, h.sockets, root, idmap.Root(linux.UIDMappings, linux.GIDMappings)); err != nil {
		return h.failed(err)
	}
	volumes := []Volume{{Source: h.config.Rootfs, Destination: "/"}}
	for _, m := range h.config.Spec.Mounts { // a mount that is no directory of the host has no socket
		if !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(h.config.Bundle, m.Source)
		}
		volumes = append(volumes, Volume{Source: m.Source, Destination: m.Destination})
	}
	if h.left, err = h.bound.Left(root, volumes); err != nil {
		log.L.WithError(err).WithField("container", h.config.ID).Warn("find sockets on volumes for the delete command")
	}
	return nil
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
		h.bound.Remove()
	}
	return nil
}

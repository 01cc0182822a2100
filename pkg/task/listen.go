// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

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

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// listenHookOf is the hook by which a container finds sockets open, or nil if none are asked for.
func listenHookOf(config process.Config, asked settings.Value, state *cleanup.State) (process.CreateHook, error) {
	if !asked.IsSet() {
		return nil, nil //nolint:nilnil // no hook
	}
	list, err := listen.Parse(asked.Text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", asked.Key, err, errdefs.ErrInvalidArgument)
	}
	h := &listenHook{key: asked.Key, list: list, state: state}
	if config.Checkpoint != "" {
		return nil, fmt.Errorf("%s %q: a container that is restored has its sockets already: %w", asked.Key, asked.Text, errdefs.ErrInvalidArgument)
	}
	namespaces := map[specs.LinuxNamespaceType]*specs.LinuxNamespace{}
	for i, n := range config.Spec.Linux.Namespaces {
		namespaces[n.Type] = &config.Spec.Linux.Namespaces[i]
	}
	if pids := namespaces[specs.PIDNamespace]; pids == nil || pids.Path != "" {
		return nil, fmt.Errorf("%s %q: needs a PID namespace of the container's own, as LISTEN_PID is 1: %w", asked.Key, asked.Text, errdefs.ErrInvalidArgument)
	}
	switch network := namespaces[specs.NetworkNamespace]; {
	case network == nil:
	case network.Path != "":
		h.network.Path = network.Path
	case !listen.Inet(list):
		h.network.Own = true
	case namespaces[specs.UserNamespace] != nil:
		// The network namespace must be there before the user namespace is, and would belong to the host's.
		return nil, fmt.Errorf("%s %q: TCP and UDP cannot be had with a user namespace and a network namespace that are both the container's own: %w", asked.Key, asked.Text, errdefs.ErrInvalidArgument)
	default:
		h.network.Own, h.own = true, network
	}
	return h, nil
}

// listenHook lets a container find sockets open.
type listenHook struct {
	key     string
	list    []listen.Address
	network listen.Network
	own     *specs.LinuxNamespace // in the configuration, if it has to be the one that is made
	config  *process.Config
	state   *cleanup.State
	sockets *listen.Sockets // from Prepare until init has them
	bound   *listen.Bound
}

// Prepare implements process.CreateHook.
func (h *listenHook) Prepare(ctx context.Context, c *process.Config) (err error) {
	if h.sockets, err = listen.Open(ctx, h.list, h.network); err != nil {
		return h.wrap(err)
	}
	if h.sockets.Namespace != nil {
		// Not by /proc/self: it is opened by the container's first stage.
		h.own.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.sockets.Namespace.Fd())
	}
	env := listen.Env(h.list)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		setEnv(c.Spec.Process, name, env[name])
	}
	h.config, c.Files = c, h.sockets.Files
	return nil
}

// Created implements process.CreateHook.
func (h *listenHook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) (err error) {
	defer h.closeSockets() // init has its own
	linux := h.config.Spec.Linux
	root := fmt.Sprintf("/proc/%d/root", init.Pid())
	if h.bound, err = listen.Bind(h.list, h.sockets, root, idmap.Root(linux.UIDMappings, linux.GIDMappings)); err != nil {
		return h.wrap(err)
	}
	// The state is written when init is known, which comes next.
	if h.state.Sockets, err = socketsOnVolumes(*h.config, h.bound, root); err != nil {
		log.L.WithError(err).WithField("container", h.config.ID).Warn("find the sockets on volumes for the delete command")
	}
	return nil
}

func (h *listenHook) wrap(err error) error {
	return fmt.Errorf("%s: %w: %w", h.key, err, errdefs.ErrFailedPrecondition)
}

func (h *listenHook) closeSockets() {
	if h.sockets != nil {
		h.sockets.Close()
		h.sockets = nil
		h.config.Files = nil
	}
}

// Removed implements process.CreateHook.
func (h *listenHook) Removed() error {
	h.closeSockets()
	if h.bound == nil {
		return nil
	}
	h.bound.Remove()
	return nil
}

// socketsOnVolumes are the sockets whose files lie on volumes of the container or in its rootfs: the delete command
// removes those if the shim cannot. root is that of the container's files.
func socketsOnVolumes(c process.Config, bound *listen.Bound, root string) ([]listen.File, error) {
	volumes := []listen.Volume{{Source: c.Rootfs, Destination: "/"}}
	for _, m := range c.Spec.Mounts { // of those that are no directories of the host none is found
		if !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(c.Bundle, m.Source)
		}
		volumes = append(volumes, listen.Volume{Source: m.Source, Destination: m.Destination})
	}
	return bound.Left(root, volumes)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// listenNone is the word for no sockets.
const listenNone = "none"

// listeningEngine is an engine whose containers find sockets open, if that is
// asked for.
func listeningEngine(engine process.Runtime, config process.Config, o options.Options) (process.Runtime, error) {
	asked := settingOf(config.Spec, annotationListen, "Listen", o.Listen)
	if asked.text == "" && !asked.here || asked.text == listenNone {
		return engine, nil
	}
	list, err := listen.Parse(asked.text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", asked.key, err, errdefs.ErrInvalidArgument)
	}
	e := listener{Runtime: engine, key: asked.key, list: list}
	if config.Checkpoint != "" {
		return nil, fmt.Errorf("%s %q: a container that is restored has its sockets already: %w", asked.key, asked.text, errdefs.ErrInvalidArgument)
	}
	namespaces := map[specs.LinuxNamespaceType]*specs.LinuxNamespace{}
	for i, n := range config.Spec.Linux.Namespaces {
		namespaces[n.Type] = &config.Spec.Linux.Namespaces[i]
	}
	if pids := namespaces[specs.PIDNamespace]; pids == nil || pids.Path != "" {
		return nil, fmt.Errorf("%s %q: needs a PID namespace of the container's own, as LISTEN_PID is 1: %w", asked.key, asked.text, errdefs.ErrInvalidArgument)
	}
	switch network := namespaces[specs.NetworkNamespace]; {
	case network == nil:
	case network.Path != "":
		e.network.Path = network.Path
	case !listen.Inet(list):
		e.network.Own = true
	case namespaces[specs.UserNamespace] != nil:
		// The network namespace must be there before the user namespace is, and would belong to the host's.
		return nil, fmt.Errorf("%s %q: TCP and UDP cannot be had with a user namespace and a network namespace that are both the container's own: %w", asked.key, asked.text, errdefs.ErrInvalidArgument)
	default:
		e.network.Own, e.own = true, network
	}
	return e, nil
}

// listener is an engine whose containers find sockets open.
type listener struct {
	process.Runtime
	key     string
	list    []listen.Address
	network listen.Network
	own     *specs.LinuxNamespace // in the configuration, if it has to be the one that is made
}

// Create implements process.Runtime.
func (e listener) Create(ctx context.Context, c process.Config, s *stdio.Streams) (process.RuntimeContainer, error) {
	sockets, err := listen.Open(ctx, e.list, e.network)
	if err != nil {
		return nil, e.wrap(err)
	}
	defer sockets.Close() // init has its own
	if sockets.Namespace != nil {
		// Not by /proc/self: it is opened by the container's first stage.
		e.own.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), sockets.Namespace.Fd())
	}
	env := listen.Env(e.list)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		setEnv(c.Spec.Process, name, env[name])
	}
	c.Files = sockets.Files
	runtime, err := e.Runtime.Create(ctx, c, s)
	if err != nil {
		return nil, err
	}
	owner := rootOf(c.Spec)
	root := fmt.Sprintf("/proc/%d/root", runtime.Init().Pid())
	bound, err := listen.Bind(e.list, sockets, root, listen.Owner{UID: owner.UID, GID: owner.GID})
	if err != nil {
		kill(runtime.Init())
		return nil, errors.Join(e.wrap(err), runtime.Discard())
	}
	if err := listSockets(c, bound, root); err != nil {
		log.L.WithError(err).WithField("container", c.ID).Warn("record sockets for whoever cleans up")
	}
	return &listening{RuntimeContainer: runtime, bound: bound, bundle: c.Bundle}, nil
}

func (e listener) wrap(err error) error {
	return fmt.Errorf("%s: %w: %w", e.key, err, errdefs.ErrFailedPrecondition)
}

// listening is a container that found sockets open.
type listening struct {
	process.RuntimeContainer
	bound  *listen.Bound
	bundle string
}

// Destroy implements process.RuntimeContainer.
func (l *listening) Destroy() error {
	return errors.Join(l.remove(), l.RuntimeContainer.Destroy())
}

// Discard implements process.RuntimeContainer.
func (l *listening) Discard() error {
	return errors.Join(l.remove(), l.RuntimeContainer.Discard())
}

func (l *listening) remove() error {
	l.bound.Remove()
	return remove(filepath.Join(l.bundle, socketsFile))
}

// socketsFile lies in the bundle of a container whose sockets have files on its
// volumes or in its root file system: the delete command removes those if the
// shim cannot any more.
const socketsFile = "shim.sockets.json"

// listSockets writes socketsFile. root is that of the container's files.
func listSockets(c process.Config, bound *listen.Bound, root string) error {
	volumes := []listen.Volume{{Source: c.Rootfs, Destination: "/"}}
	for _, m := range c.Spec.Mounts { // of those that are no directories of the host none is found
		if !filepath.IsAbs(m.Source) {
			m.Source = filepath.Join(c.Bundle, m.Source)
		}
		volumes = append(volumes, listen.Volume{Source: m.Source, Destination: m.Destination})
	}
	list, err := bound.Left(root, volumes)
	if err != nil || len(list) == 0 {
		return err
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return replace(filepath.Join(c.Bundle, socketsFile), func(path string) error { return os.WriteFile(path, data, 0o600) })
}

// socketsTimeout bounds the removal of sockets from volumes, which may hang: it
// is a part of the delete command's time.
const socketsTimeout = time.Second

// removeSockets removes what socketsFile lists. One that stays is no reason to
// keep the bundle.
func removeSockets(ctx context.Context, containerID, bundle string) {
	path := filepath.Join(bundle, socketsFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var list []listen.File
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, socketsTimeout)
		defer cancel()
		err = listen.RemoveLeft(ctx, list)
	}
	if err == nil { // or another delete has to try again
		err = remove(path)
	}
	if err != nil {
		log.L.WithError(err).WithField("container", containerID).Warn("remove sockets; one may be left")
	}
}

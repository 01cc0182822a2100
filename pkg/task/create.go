// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/unixfile"
)

// CreateRequest is Task.Create.
type CreateRequest struct {
	ID     string
	Bundle string // absolute path
	Rootfs []mount.Mount
	IO     stdio.Config
	// Checkpoint is the directory of an image to restore from; empty for a
	// fresh container.
	Checkpoint string
	Options    options.Options
}

// Create makes a container whose init waits to be started or restored. When it fails, or
// ctx ends first, nothing is left of it.
func (m *Manager) Create(ctx context.Context, r CreateRequest) (c *Container, err error) {
	if err := CheckID("id", r.ID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := m.reserve(r.ID, cancel); err != nil {
		return nil, err
	}
	var undo undoList
	defer func() {
		if err != nil {
			err = errors.Join(err, undo.run())
		}
		m.settle(r.ID, c)
	}()
	config, err := m.config(r)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	asked, err := settings.Parse(config.Spec, r.Options, m.namespace, r.ID)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	host, err := hostrootfs.Parse(hostSetting(asked.HostRootfs), hostSetting(asked.HostRootfsMask))
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if config.Checkpoint != "" {
		if err := host.RefuseCheckpoint("cannot be restored from a checkpoint", errdefs.ErrInvalidArgument); err != nil {
			return nil, fmt.Errorf("container %q: %w", r.ID, err)
		}
	}
	config.ExecCgroup, config.ExecTimeout = asked.ExecCgroup, asked.ExecTimeout
	state := cleanup.State{Root: config.Root, SystemdCgroup: config.SystemdCgroup, PidFile: asked.PidFile.Text}
	if asked.StopIsSet { // else the delete command kills at once
		state.Stop = asked.Stop
	}
	if config.Hooks, err = m.hooks(config, asked, &host, &state); err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	undo.add("entry in the list of containers", func() error { return m.index.Remove(r.ID, r.Bundle) })
	if err := m.index.Add(r.ID, r.Bundle, config.Root); err != nil {
		return nil, fmt.Errorf("container %q: list it for the delete command: %w", r.ID, err)
	}
	undo.add("state", func() error { return cleanup.RemoveState(r.Bundle) })
	if err := state.Write(r.Bundle); err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if err := m.layRootfs(&config, r.Rootfs, &host, &undo); err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	readiness, err := prepareNotify(config, asked.NotifyTimeout, &undo)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	container, err := process.New(ctx, m.engine, m.events, config, eventMounts(r.Rootfs), func(pid int, exit *process.Exit) {
		state.Pid, state.Exit = pid, exit
		if err := state.Write(r.Bundle); err != nil {
			log.L.WithError(err).WithField("container", r.ID).Warn("record pid and exit status")
		}
	})
	if err != nil {
		return nil, err
	}
	if readiness != nil {
		readiness.receive(container)
	}
	return &Container{
		Container: container, undo: undo.run, cpusets: m.cpusets,
		readiness: readiness, stop: asked.Stop, stopAsked: asked.StopIsSet, joinsPIDs: cleanup.JoinsPIDs(config.Spec),
		host: host, ofCRI: config.Spec.Annotations[criTypeAnnotation] != "",
	}, nil
}

func hostSetting(v settings.Value) hostrootfs.Setting {
	return hostrootfs.Setting{Key: v.Key, Text: v.Text, Asked: v.IsSet()}
}

// hooks are what the container has beside what the runtime makes.
func (m *Manager) hooks(
	config process.Config, asked settings.Settings, host *hostrootfs.Rootfs, state *cleanup.State,
) ([]process.CreateHook, error) {
	var hooks []process.CreateHook
	source, err := cpusetSourceOf(config.Spec, asked, m.cgroups)
	if err != nil {
		return nil, err
	}
	if source.path != "" {
		hooks = append(hooks, &cpusetHook{id: config.ID, cpusets: m.cpusets, source: source})
	}
	if !host.Empty() {
		hooks = append(hooks, host)
	}
	// The sockets are made after the check, and the pid file after them.
	sockets, err := listenHookOf(config, asked.Listen, state)
	if err != nil {
		return nil, err
	}
	if sockets != nil {
		hooks = append(hooks, sockets)
	}
	if err := checkPidFile(asked.PidFile); err != nil {
		return nil, err
	}
	if asked.PidFile.IsSet() {
		hooks = append(hooks, &pidFileHook{path: asked.PidFile.Text})
	}
	return hooks, nil
}

// config gathers and checks all that is asked for.
func (m *Manager) config(r CreateRequest) (process.Config, error) {
	if !filepath.IsAbs(r.Bundle) {
		return process.Config{}, fmt.Errorf("bundle %q: must be an absolute path: %w", r.Bundle, errdefs.ErrInvalidArgument)
	}
	spec, err := ReadSpec(r.Bundle)
	if err != nil {
		return process.Config{}, err
	}
	if err := checkSpec(spec); err != nil {
		return process.Config{}, fmt.Errorf("%s: %w", specFile, err)
	}
	if spec.Process.Terminal != r.IO.Terminal {
		return process.Config{}, fmt.Errorf("terminal: the request says %t, process.terminal in %s says %t: %w",
			r.IO.Terminal, specFile, spec.Process.Terminal, errdefs.ErrInvalidArgument)
	}
	if err := m.adapt(spec); err != nil {
		return process.Config{}, err
	}
	r.IO.ID, r.IO.Host = r.ID, m.io
	return process.Config{
		ID: r.ID, Bundle: r.Bundle, Rootfs: rootfsPath(r.Bundle, spec), Spec: spec, IO: r.IO, Checkpoint: r.Checkpoint,
		Options: processOptions(r.Options, m.namespace, systemdCgroup(spec)),
	}, nil
}

// processOptions are the options that the engine needs. containerd's clients
// cannot always say that the cgroup driver is systemd's, but the form of
// cgroupsPath does.
func processOptions(o options.Options, namespace string, systemd bool) process.Options {
	root := o.Root
	if root == "" {
		root = options.DefaultRoot
	}
	return process.Options{
		Root:          filepath.Join(root, namespace),
		SystemdCgroup: o.SystemdCgroup || systemd,
		NoPivotRoot:   o.NoPivotRoot,
		NoNewKeyring:  o.NoNewKeyring,
		IOOwner:       stdio.Owner{UID: int(o.IoUid), GID: int(o.IoGid)},
		CriuPath:      o.CriuPath,
		CriuWorkPath:  o.CriuWorkPath,
	}
}

// layRootfs mounts what containerd asks for, and what of the host is asked for.
func (m *Manager) layRootfs(c *process.Config, image []mount.Mount, host *hostrootfs.Rootfs, undo *undoList) error {
	mounts, err := host.Root(c, image)
	if err != nil {
		return err
	}
	if err := m.mountRootfs(c.Bundle, mounts, undo); err != nil {
		return err
	}
	undo.add("masks of host-rootfs", func() error { return hostrootfs.Remove(c.Bundle) })
	return host.Fill(c, len(image) == 0)
}

// mountRootfs mounts what containerd asks for, and adds to undo what it did.
func (m *Manager) mountRootfs(bundle string, mounts []mount.Mount, undo *undoList) error {
	if len(mounts) == 0 {
		return nil
	}
	defer m.hold()()
	target := filepath.Join(bundle, rootfsDir)
	err := os.Mkdir(target, 0o711)
	if err == nil {
		undo.add("root file system's directory", func() error { return unixfile.Remove(target) })
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	undo.add("root file system", func() error { return cleanup.UnmountRootfs(bundle) })
	if err := mount.All(mounts, target); err != nil {
		return fmt.Errorf("mount root file system %s: %w", describe(mounts), err)
	}
	return nil
}

// describe names mounts in an error.
func describe(mounts []mount.Mount) string {
	var all []string
	for _, m := range mounts {
		all = append(all, fmt.Sprintf("%s %q (%s)", m.Type, m.Source, strings.Join(m.Options, ",")))
	}
	return strings.Join(all, " + ")
}

func eventMounts(mounts []mount.Mount) []event.Mount {
	var all []event.Mount
	for _, m := range mounts {
		all = append(all, event.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}

// undoList is what has to be undone, in the order in which it was done.
type undoList []undoStep

type undoStep struct {
	name string
	undo func() error
}

func (l *undoList) add(name string, undo func() error) { *l = append(*l, undoStep{name, undo}) }

// run undoes the last step first. A step that fails does not keep the others
// from being undone; all steps bear being run again.
func (l undoList) run() error {
	var errs []error
	for _, step := range slices.Backward(l) {
		if err := step.undo(); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", step.name, err))
		}
	}
	return errors.Join(errs...)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
)

// CreateRequest is Task.Create.
type CreateRequest struct {
	ID         string
	Bundle     string // absolute path
	Rootfs     []mount.Mount
	IO         stdio.Config
	Checkpoint string // directory of an image to restore from; empty for a fresh container
	Options    options.Options
}

// Create creates a container whose init waits to be started or restored. If it fails, or ctx ends first, nothing is
// left of it.
func (m *Manager) Create(ctx context.Context, r CreateRequest) (made *Task, err error) {
	if err := CheckID("id", r.ID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	adapt, err := m.reserve(r.ID, cancel)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	defer func() {
		m.finishCreate(r.ID, made) // nil after a panic too: the delete command removes what is left
		if made != nil {
			made.Init().OpenStdin() // a client finds the container at the end of its input
		}
	}()
	c, config, err := m.prepare(r, adapt)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if c.Container, err = process.New(ctx, m.runtime, m.events, config); err != nil {
		return nil, err
	}
	return c, nil
}

// prepare reads and checks the request and the bundle.
func (m *Manager) prepare(r CreateRequest, adapt adapt) (c *Task, config process.Config, err error) {
	spec, err := m.spec(r)
	if err == nil {
		err = adapt(spec)
	}
	if err != nil {
		return nil, config, err
	}
	set, err := m.settings.Parse(spec, r.Options, m.io.Namespace, r.ID)
	if err != nil {
		return nil, config, err
	}
	c = &Task{
		cpusets: m.cpusets, settings: m.settings, options: r.Options, annotations: spec.Annotations,
		stop: set.Stop, stopIsSet: set.StopIsSet, joinsPIDs: joinsPIDs(spec),
	}
	if c.parts, err = m.extensions.New(set.Values); err != nil {
		return nil, config, err
	}
	if r.Checkpoint != "" {
		err = extension.RefuseCheckpoint(c.parts, "cannot be restored from a checkpoint", errdefs.ErrInvalidArgument)
		if err != nil {
			return nil, config, err
		}
	}
	config = m.config(r, spec, set)
	m.addHooks(c, &config, r.Rootfs, set)
	return c, config, nil
}

// spec reads and checks the OCI configuration.
func (m *Manager) spec(r CreateRequest) (*specs.Spec, error) {
	if !filepath.IsAbs(r.Bundle) {
		return nil, fmt.Errorf("bundle %q: must be an absolute path: %w", r.Bundle, errdefs.ErrInvalidArgument)
	}
	spec, err := ReadSpec(r.Bundle)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(checkSpec(spec), m.CheckAnnotations(spec.Annotations)); err != nil {
		return nil, fmt.Errorf("%s: %w", specFile, err)
	}
	if spec.Process.Terminal != r.IO.Terminal {
		return nil, fmt.Errorf("terminal: the request says %t, process.terminal in %s says %t: %w",
			r.IO.Terminal, specFile, spec.Process.Terminal, errdefs.ErrInvalidArgument)
	}
	return spec, nil
}

// config returns the configuration for pkg/process, without hooks. The cgroup driver is systemd's also if only the form
// of cgroupsPath says so: not every client can name the driver.
func (m *Manager) config(r CreateRequest, spec *specs.Spec, set settings.Settings) process.Config {
	r.IO.ID, r.IO.Host = r.ID, m.io
	rootfs := spec.Root.Path
	if !filepath.IsAbs(rootfs) {
		rootfs = filepath.Join(r.Bundle, rootfs)
	}
	var mounts []event.Mount
	for _, one := range r.Rootfs {
		mounts = append(mounts, event.Mount(one))
	}
	return process.Config{
		ID: r.ID, Bundle: r.Bundle, Rootfs: rootfs, Spec: spec, IO: r.IO, Checkpoint: r.Checkpoint, Mounts: mounts,
		MayRestore: m.mayRestore,
		Options: process.Options{
			Root:          filepath.Join(cmp.Or(r.Options.Root, options.DefaultRoot), m.io.Namespace),
			SystemdCgroup: r.Options.SystemdCgroup || systemdCgroup(spec),
			NoPivotRoot:   r.Options.NoPivotRoot,
			NoNewKeyring:  r.Options.NoNewKeyring,
			IOOwner:       ioOwner(r.Options, spec.Linux),
			CriuPath:      r.Options.CriuPath,
			CriuWorkPath:  r.Options.CriuWorkPath,
			ExecLimits:    set.ExecLimits,
			VerdictFile:   set.VerdictFile.Text,
		},
	}
}

// ioOwner returns the owner of the pipes of a container, whose programs open them again as /dev/stdout: the user that
// the options name, or else the container's root. Docker names a user only to runc's shim.
func ioOwner(o options.Options, linux *specs.Linux) idmap.Owner {
	named := idmap.Owner{UID: int(o.IoUid), GID: int(o.IoGid)}
	if named != (idmap.Owner{}) {
		return named
	}
	return idmap.Root(linux.UIDMappings, linux.GIDMappings)
}

// addHooks adds to config what c has in addition to what the runtime makes.
func (m *Manager) addHooks(c *Task, config *process.Config, image []mount.Mount, set settings.Settings) {
	c.record = &record{index: &m.index, id: config.ID, bundle: config.Bundle, parts: c.parts, state: cleanup.State{
		Root: config.Root, SystemdCgroup: config.SystemdCgroup,
	}}
	if set.StopIsSet { // else the delete command kills immediately
		c.record.state.Stop = set.Stop
	}
	if len(image) > 0 {
		c.rootfs = &rootfsHook{image: image, suspend: m.io.Children.Suspend, bundle: config.Bundle}
	}
	if set.CPUSetSource.IsSet() {
		c.cpuset = cpuset.NewHook(m.cpusets, m.cgroups, set.CPUSetSource, set.CPUSetSources, set.CPUSetMems)
	}
	c.hook(config)
}

// hook adds to config what c has.
func (c *Task) hook(config *process.Config) {
	config.Record = c.record
	if c.rootfs != nil {
		config.Hooks = append(config.Hooks, c.rootfs)
	}
	if c.cpuset != nil {
		config.Hooks, config.CPUSet = append(config.Hooks, c.cpuset), c.cpuset
	}
	for _, p := range c.parts {
		config.Hooks = append(config.Hooks, p)
		if p.Sleeper != nil {
			config.Sleeper = p.Sleeper
		}
	}
}

// record is what the delete command has to know (pkg/cleanup). It implements [process.Record].
type record struct {
	index      *cleanup.Index
	id, bundle string
	parts      []*extension.Part
	state      cleanup.State
}

func (r *record) write() (err error) {
	if r.state.Extensions, err = extension.Records(r.parts); err != nil {
		return err
	}
	return r.index.Write(r.id, r.bundle, r.state)
}

// update writes what has become known. It logs an error: a missing record is better than a missing container.
func (r *record) update() {
	if err := r.write(); err != nil {
		log.L.WithError(err).WithField("container", r.id).Warn("write the pid and the exit for the delete command")
	}
}

func (r *record) Begin() error { return r.write() }

func (r *record) Created(pid int) {
	r.state.Pid = pid
	r.update()
}

func (r *record) Exited(exit process.Exit) {
	r.state.Exit = &exit
	r.update()
}

func (r *record) Remove() error { return r.index.Remove(r.id, r.bundle) }

func (r *record) Deleted() { r.index.LeaveAnswer(r.bundle, r.state) }

// rootfsHook mounts an image.
type rootfsHook struct {
	process.NoHook
	image   []mount.Mount
	suspend func() (resume func()) // suspends the reaper while mount helpers may run
	bundle  string
	mounted bool // something is, perhaps only the first of several mounts
}

func (h *rootfsHook) Prepare(context.Context, *process.Config) error {
	defer h.suspend()()
	target := filepath.Join(h.bundle, rootfsDir)
	if err := os.Mkdir(target, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	h.mounted = true
	if err := mount.All(h.image, target); err != nil {
		return fmt.Errorf("mount root file system %+v: %w", h.image, err)
	}
	return nil
}

// Removed leaves what the client mounted itself.
func (h *rootfsHook) Removed() error {
	if !h.mounted {
		return nil
	}
	return cleanup.UnmountRootfs(h.bundle)
}

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
	"strings"

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
	"sandbox.internal/shim/pkg/unixfile"
)

// CreateRequest is Task.Create.
type CreateRequest struct {
	ID     string
	Bundle string // absolute path
	Rootfs []mount.Mount
	IO     stdio.Config
	// Checkpoint is the directory of an image to restore from; empty for a fresh container.
	Checkpoint string
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
	if err := m.reserve(r.ID, cancel); err != nil {
		return nil, err
	}
	defer func() {
		m.finishCreate(r.ID, made) // nil after a panic too: the delete command removes what is left
		if made != nil {
			made.Init().OpenStdin() // a client finds the container at the end of its input
		}
	}()
	c, config, err := m.prepare(r)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if c.Container, err = process.New(ctx, m.runtime, m.events, config); err != nil {
		return nil, err
	}
	return c, nil
}

// prepare reads and checks what the request and the bundle say.
func (m *Manager) prepare(r CreateRequest) (c *Task, config process.Config, err error) {
	spec, err := m.spec(r)
	if err != nil {
		return nil, config, err
	}
	set, err := m.settings.Parse(spec, r.Options, m.io.Namespace, r.ID)
	if err != nil {
		return nil, config, err
	}
	if err := checkVerdictFile(set.VerdictFile); err != nil {
		return nil, config, err
	}
	c = &Task{
		cpusets: m.cpusets, settings: m.settings, options: r.Options, annotations: spec.Annotations,
		stop: set.Stop, stopIsSet: set.StopIsSet, joinsPIDs: cleanup.JoinsPIDs(spec), ofCRI: ofCRI(spec),
	}
	if c.parts, err = m.extensions.New(set.Values); err != nil {
		return nil, config, err
	}
	if r.Checkpoint != "" {
		err := extension.RefuseCheckpoint(c.parts, "cannot be restored from a checkpoint", errdefs.ErrInvalidArgument)
		if err != nil {
			return nil, config, err
		}
	}
	config = m.config(r, spec, set)
	m.addHooks(c, &config, r.Rootfs, set)
	return c, config, nil
}

// spec reads and checks the OCI configuration, and adds what the pod contributes to it.
func (m *Manager) spec(r CreateRequest) (*specs.Spec, error) {
	if !filepath.IsAbs(r.Bundle) {
		return nil, fmt.Errorf("bundle %q: must be an absolute path: %w", r.Bundle, errdefs.ErrInvalidArgument)
	}
	spec, err := ReadSpec(r.Bundle)
	if err != nil {
		return nil, err
	}
	if err := checkSpec(spec); err != nil {
		return nil, fmt.Errorf("%s: %w", specFile, err)
	}
	if err := m.CheckAnnotations(spec.Annotations); err != nil {
		return nil, fmt.Errorf("%s: %w", specFile, err)
	}
	if spec.Process.Terminal != r.IO.Terminal {
		return nil, fmt.Errorf("terminal: the request says %t, process.terminal in %s says %t: %w",
			r.IO.Terminal, specFile, spec.Process.Terminal, errdefs.ErrInvalidArgument)
	}
	adapt, err := m.admit()
	if err != nil {
		return nil, err
	}
	return spec, adapt(spec)
}

func checkVerdictFile(file settings.Value) error {
	if !file.IsSet() {
		return nil
	}
	dir, err := unixfile.OpenDir(filepath.Dir(file.Text))
	if err != nil {
		return file.Refuse("in a directory that exists, without symbolic links in the path")
	}
	return dir.Close()
}

// config returns the configuration for pkg/process, without hooks. containerd's clients cannot always say that the
// cgroup driver is systemd's, but the form of cgroupsPath does.
func (m *Manager) config(r CreateRequest, spec *specs.Spec, set settings.Settings) process.Config {
	r.IO.ID, r.IO.Host, r.IO.SplitStderr = r.ID, m.io, !ofCRI(spec)
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

// ioOwner returns who owns the pipes of a container, so that its programs can open them again as /dev/stdout: whom the
// options name, or else the container's root. Docker names nobody to a runtime whose type is not that of runc's shim.
func ioOwner(o options.Options, linux *specs.Linux) idmap.Owner {
	named := idmap.Owner{UID: int(o.IoUid), GID: int(o.IoGid)}
	if named != (idmap.Owner{}) {
		return named
	}
	return idmap.Root(linux.UIDMappings, linux.GIDMappings)
}

// addHooks adds to config the hooks for what c has in addition to what the runtime makes.
func (m *Manager) addHooks(c *Task, config *process.Config, image []mount.Mount, set settings.Settings) {
	record := &record{index: &m.index, id: config.ID, bundle: config.Bundle, parts: c.parts, state: cleanup.State{
		Root: config.Root, SystemdCgroup: config.SystemdCgroup,
	}}
	if set.StopIsSet { // else the delete command kills immediately
		record.state.Stop = set.Stop
	}
	config.Exited, config.Deleted = record.Exited, record.Deleted
	hooks := []process.Hook{firstHook{record: record}}
	if len(image) > 0 {
		hooks = append(hooks, &rootfsHook{image: image, suspend: m.io.Children.Suspend, bundle: config.Bundle})
	}
	if set.CPUSetSource.IsSet() {
		follows := cpuset.NewHook(m.cpusets, m.cgroups, set.CPUSetSource, set.CPUSetSources, set.CPUSetMems)
		hooks, config.CPUSet = append(hooks, follows), follows
	}
	for _, p := range c.parts {
		hooks = append(hooks, p)
	}
	config.Hooks = append(hooks, lastHook{record: record})
}

// record is what the delete command has to know (pkg/cleanup). Calls are one at a time.
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
	return r.state.Write(r.bundle)
}

// update writes what has become known. It logs an error: a missing record is better than a missing container.
func (r *record) update() {
	if err := r.write(); err != nil {
		log.L.WithError(err).WithField("container", r.id).Warn("write the pid and the exit for the delete command")
	}
}

func (r *record) Exited(exit process.Exit) {
	r.state.Exit = &exit
	r.update()
}

func (r *record) Deleted() { r.index.LeaveAnswer(r.bundle, r.state) }

// firstHook makes the record before anything else is made.
type firstHook struct {
	process.NoHook
	*record
}

func (h firstHook) Prepare(context.Context, *process.Config) error {
	// An earlier container with this bundle may have left it.
	if err := cleanup.RemoveAnswer(h.bundle); err != nil {
		return err
	}
	if err := h.index.Add(h.id, h.bundle, h.state.Root); err != nil {
		return fmt.Errorf("list it for the delete command: %w", err)
	}
	return h.write()
}

func (h firstHook) Removed() error {
	err := cleanup.RemoveState(h.bundle)
	return errors.Join(err, h.index.Remove(h.id, h.bundle))
}

// lastHook adds to the record what is known when init exists.
type lastHook struct {
	process.NoHook
	*record
}

func (h lastHook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.state.Pid = init.Pid()
	h.update()
	return nil
}

// rootfsHook mounts an image.
type rootfsHook struct {
	process.NoHook
	image   []mount.Mount
	suspend func() (resume func()) // suspends the reaper while mount helpers may run
	bundle  string
	made    string // directory that Prepare made, or ""
	mounted bool   // something is, perhaps only the first of several mounts
}

func (h *rootfsHook) Prepare(context.Context, *process.Config) error {
	defer h.suspend()()
	target := filepath.Join(h.bundle, rootfsDir)
	if err := os.Mkdir(target, 0o711); err == nil {
		h.made = target
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	h.mounted = true
	if err := mount.All(h.image, target); err != nil {
		return fmt.Errorf("mount root file system %s: %w", describe(h.image), err)
	}
	return nil
}

func describe(mounts []mount.Mount) string {
	var all []string
	for _, m := range mounts {
		all = append(all, fmt.Sprintf("%s %q (%s)", m.Type, m.Source, strings.Join(m.Options, ",")))
	}
	return strings.Join(all, " + ")
}

// Removed leaves what the client mounted itself.
func (h *rootfsHook) Removed() error {
	if h.mounted {
		if err := cleanup.UnmountRootfs(h.bundle); err != nil {
			return err
		}
	}
	if h.made == "" {
		return nil
	}
	return unixfile.Remove(h.made)
}

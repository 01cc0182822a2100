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
	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/notify"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/pidfile"
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
func (m *Manager) Create(ctx context.Context, r CreateRequest) (made *Container, err error) {
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
	spec, err := m.spec(r)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	set, err := settings.Parse(spec, r.Options, m.io.Namespace, r.ID)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if err := checkVerdictFile(set.VerdictFile); err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	c := &Container{
		cpusets: m.cpusets, options: r.Options, annotations: spec.Annotations, stop: set.Stop, stopIsSet: set.StopIsSet,
		joinsPIDs: cleanup.JoinsPIDs(spec), ofCRI: ofCRI(spec),
	}
	config := m.config(r, spec, set)
	if err := m.addHooks(c, &config, r.Rootfs, set); err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if c.Container, err = process.New(ctx, m.runtime, m.events, config); err != nil {
		return nil, err
	}
	return c, nil
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
			Init:          set.Init,
			TaskDir:       set.TaskDir.Text,
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

// addHooks adds to config the hooks for what c has in addition to what the runtime makes. The sockets are made after
// the check of the host's directories, in which they may be, and init is announced last.
func (m *Manager) addHooks(c *Container, config *process.Config, image []mount.Mount, set settings.Settings) error {
	host, err := hostrootfs.Parse(set.HostRootfs, set.HostRootfsMask, set.HostRootfsUser)
	if err != nil {
		return err
	}
	c.init = set.Init
	if config.Checkpoint != "" {
		if err := c.refuseCheckpoint("cannot be restored from a checkpoint", errdefs.ErrInvalidArgument); err != nil {
			return err
		}
		if err := host.RefuseCheckpoint("cannot be restored from a checkpoint", errdefs.ErrInvalidArgument); err != nil {
			return err
		}
	}
	c.host = &host
	bundle := &bundleHook{index: &m.index, id: config.ID, dir: config.Bundle, state: cleanup.State{
		Root: config.Root, SystemdCgroup: config.SystemdCgroup, PidFile: set.PidFile.Text,
	}}
	if set.StopIsSet { // else the delete command kills immediately
		bundle.state.Stop = set.Stop
	}
	c.bundle = bundle
	state := stateHook{bundle: bundle}
	rootfs := &rootfsHook{image: image, host: &host, suspend: m.io.Children.Suspend, bundle: config.Bundle}
	hooks := []process.Hook{bundle, rootfs}
	if set.CPUSetSource.IsSet() {
		follows := cpuset.NewHook(m.cpusets, m.cgroups, set.CPUSetSource, set.CPUSetSources, set.CPUSetMems)
		hooks, config.CPUSet = append(hooks, follows), follows
	}
	if !host.IsEmpty() {
		hooks = append(hooks, &host)
	}
	if set.NotifyTimeout > 0 {
		c.notify = notify.NewHook(set.NotifyTimeout)
		hooks = append(hooks, c.notify)
	}
	if set.Listen.IsSet() {
		state.sockets = listen.NewHook(set.Listen)
		hooks = append(hooks, state.sockets)
	}
	if set.PidFile.IsSet() {
		hooks = append(hooks, pidfile.NewHook(set.PidFile))
	}
	config.Hooks, config.Exited, config.Deleted = append(hooks, state), state.exited, bundle.deleted
	return nil
}

// bundleHook writes what the delete command has to know (pkg/cleanup) before anything else is made.
type bundleHook struct {
	process.NoHook
	index   *cleanup.Index
	id, dir string
	state   cleanup.State
}

func (h *bundleHook) Prepare(context.Context, *process.Config) error {
	// An earlier container with this bundle may have left it.
	if err := cleanup.RemoveAnswer(h.dir); err != nil {
		return err
	}
	if err := h.index.Add(h.id, h.dir, h.state.Root); err != nil {
		return fmt.Errorf("list it for the delete command: %w", err)
	}
	return h.state.Write(h.dir)
}

func (h *bundleHook) Removed() error {
	err := cleanup.RemoveState(h.dir)
	return errors.Join(err, h.index.Remove(h.id, h.dir))
}

func (h *bundleHook) deleted() { h.index.LeaveAnswer(h.dir, h.state) }

// stateHook adds to the state what is known when init exists and when it exits. It comes after the hook for the
// sockets.
type stateHook struct {
	process.NoHook
	bundle  *bundleHook
	sockets *listen.Hook // nil: none
}

func (h stateHook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.bundle.state.Pid = init.Pid()
	if h.sockets != nil {
		h.bundle.state.Sockets = h.sockets.Left()
	}
	h.written(h.bundle.state.Write(h.bundle.dir))
	return nil
}

func (h stateHook) exited(exit process.Exit) {
	h.bundle.state.Exit = &exit
	h.written(h.bundle.state.Write(h.bundle.dir))
}

// written logs err: a missing state is better than a missing container.
func (h stateHook) written(err error) {
	if err != nil {
		log.L.WithError(err).WithField("container", h.bundle.id).Warn("write the pid and the exit for the delete command")
	}
}

// rootfsHook mounts the root file system: an image, or an empty one for directories of the host.
type rootfsHook struct {
	process.NoHook
	image   []mount.Mount
	host    *hostrootfs.Rootfs
	suspend func() (resume func()) // suspends the reaper while mount helpers may run
	bundle  string
	made    string // directory that Prepare made, or ""
	mounted bool   // something is, perhaps only the first of several mounts
}

func (h *rootfsHook) Prepare(_ context.Context, c *process.Config) error {
	mounts, err := h.host.RootMounts(c, h.image)
	if err != nil || len(mounts) == 0 {
		return err
	}
	defer h.suspend()()
	target := filepath.Join(h.bundle, rootfsDir)
	if err = os.Mkdir(target, 0o711); err == nil {
		h.made = target
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	h.mounted = true
	if err := mount.All(mounts, target); err != nil {
		return fmt.Errorf("mount root file system %s: %w", describe(mounts), err)
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

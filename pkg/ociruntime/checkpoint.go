// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/fail"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Checkpoint implements process.RuntimeContainer. If it fails, it removes r.Path, unless that directory existed before.
func (c *container) Checkpoint(r process.CheckpointRequest) error {
	if err := findCriu(c.config.CriuPath); err != nil {
		return err
	}
	opts, err := dumpOpts(r)
	if err != nil {
		return err
	}
	lc, err := c.libcontainer()
	if err != nil {
		return err
	}
	state, err := lc.State()
	if err != nil {
		return err
	}
	if err := cmp.Or(
		sameNamespaces(state.Config.Namespaces, state.InitProcessPid), checkExternalMounts(&state.Config),
	); err != nil {
		return err
	}
	existed := isDir(r.Path)
	defer c.runtime.reaper.Suspend()() // criu and the helpers that it runs
	return classify(c.withLog(r.WorkPath, "dump.log", func(dir string) error {
		opts.WorkDirectory = dir
		err := fail.After("checkpoint.dump", lc.Checkpoint(opts))
		if err != nil && !existed {
			err = errors.Join(err, fail.After("checkpoint-undo.image", os.RemoveAll(r.Path)))
		}
		return err
	}))
}

// sameNamespaces refuses paths that no longer lead to the namespaces of pid, as those of a process that has ended or of
// a descriptor that was closed: libcontainer reads them again and tells CRIU not to save these namespaces.
func sameNamespaces(list configs.Namespaces, pid int) error {
	for _, ns := range list {
		if ns.Path == "" || ns.Type != configs.NEWNET && ns.Type != configs.NEWPID {
			continue
		}
		own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, configs.NsName(ns.Type)))
		if err != nil {
			return err
		}
		named, err := os.Stat(ns.Path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err != nil || !os.SameFile(own, named) {
			return fmt.Errorf("config.json: linux.namespaces: path %q of type %s no longer names the namespace "+
				"that the container is in: %w", ns.Path, ns.Type, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// prepare makes a container without a process, for Restore.
func (r *Runtime) prepare(c process.Config, config *configs.Config) (process.RuntimeContainer, error) {
	if err := findCriu(c.CriuPath); err != nil {
		return nil, err
	}
	if err := checkImage(c.Checkpoint); err != nil {
		return nil, err
	}
	prepared, err := r.newContainer(c, config, nil)
	if err != nil {
		return nil, err
	}
	if prepared.lc, err = libcontainer.Create(c.Root, c.ID, config); err != nil {
		return nil, classify(err)
	}
	return prepared, nil
}

// Restore implements process.RuntimeContainer. CRIU makes init a child of the shim (criu(8), --restore-sibling), so
// init is waited for like one that libcontainer started.
func (c *container) Restore(ctx context.Context, s *stdio.Streams) (process.Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	init, err := libcontainerProcess(c.config.Spec.Process, s)
	if err != nil {
		return nil, err
	}
	if _, _, stderr := s.Child(); stderr != nil { // also beside a terminal
		init.Stderr = stderr
	}
	defer c.runtime.reaper.Suspend()()
	group := c.lc.Config().Cgroups // read now, since a restore writes to the configuration
	// criu is a member while it restores.
	kill := func() { killMembers(c.config.ID, group, func(int) bool { return true }) }
	h, err := c.runtime.start(ctx, init, s, kill, func() error { return c.restoreImage(init) })
	if err == nil {
		return h, nil
	}
	kill()
	if _, none := init.Pid(); none == nil {
		_ = init.Signal(unix.SIGKILL) // it may be dead already
		_, _ = init.Wait()            // err says what went wrong
	}
	return nil, err
}

func (c *container) restoreImage(init *libcontainer.Process) error {
	config := c.lc.Config()
	if err := checkExternalMounts(&config); err != nil {
		return err
	}
	err := c.withLog(c.config.CriuWorkPath, "restore.log", func(dir string) error {
		// Whatever the checkpoint was allowed to contain may be restored.
		opts := criuOpts(c.config.Checkpoint, dir)
		opts.TcpEstablished, opts.ExternalUnixConnections, opts.FileLocks = true, true, true
		return c.lc.Restore(init, opts)
	})
	if err != nil {
		return err
	}
	// libcontainer v1.5.2 knows when a restored init began, by which it recognises it, only from the state on disk.
	lc, err := libcontainer.Load(c.config.Root, c.config.ID)
	if err != nil {
		return err
	}
	c.lc = lc
	limitDepth(c.config.ID, c.cgroup, c.config.Spec.Linux.Resources)
	return c.prepareExecLimits()
}

// criu is the program that libcontainer runs for checkpoints. It takes the first in PATH and cannot be told another.
const criu = "criu"

// findCriu returns an error if there is no criu, or if want is set and another one would run.
func findCriu(want string) error {
	path, err := exec.LookPath(criu)
	if err != nil {
		return fmt.Errorf("program %q: not found in PATH of containerd; it is in the package %q: %w",
			criu, criu, errdefs.ErrNotImplemented)
	}
	if want != "" && want != path {
		return fmt.Errorf("CriuPath %q: PATH of containerd leads to %q, and only that can be used: %w",
			want, path, errdefs.ErrInvalidArgument)
	}
	return nil
}

// criuOpts are the options that are always the same. Others (CNI) make the devices of network namespaces, also before a
// restore.
func criuOpts(image, work string) *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{ImagesDirectory: image, WorkDirectory: work, EmptyNs: unix.CLONE_NEWNET, StatusFd: -1}
}

// dumpOpts translates r, as far as libcontainer does not check it.
func dumpOpts(r process.CheckpointRequest) (*libcontainer.CriuOpts, error) {
	invalid := func(field, value, want string) error {
		return fmt.Errorf("%s %q: %s: %w", field, value, want, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(r.Path) {
		return nil, invalid("path", r.Path, "must be an absolute path")
	}
	if r.ParentPath != "" {
		if filepath.IsAbs(r.ParentPath) {
			return nil, invalid("parent_path", r.ParentPath, "must be relative to the path of the image")
		}
		if parent := filepath.Join(r.Path, r.ParentPath); !isDir(parent) {
			return nil, invalid("parent_path", r.ParentPath, "there is no directory "+parent)
		}
	}
	if !slices.Contains(cgroupModes, r.CgroupsMode) {
		return nil, invalid("cgroups_mode", r.CgroupsMode, "want one of "+strings.Join(cgroupModes[1:], ", "))
	}
	for _, kind := range r.EmptyNamespaces {
		if kind != "network" {
			return nil, invalid("empty_namespaces", kind, "want network, which is always restored empty")
		}
	}
	o := criuOpts(r.Path, "")
	o.ParentImage = r.ParentPath
	o.ManageCgroupsMode = r.CgroupsMode
	o.LeaveRunning = !r.Exit
	o.TcpEstablished = r.OpenTCP
	o.ExternalUnixConnections = r.ExternalUnixSockets
	o.ShellJob = r.Terminal
	o.FileLocks = r.FileLocks
	return o, nil
}

// cgroupModes are those of criu(8), --manage-cgroups; empty is its default.
var cgroupModes = []string{"", "soft", "full", "strict", "ignore"}

// checkImage refuses a directory that is no checkpoint: criu's own error is hard to understand.
func checkImage(dir string) error {
	// CRIU and libcontainer read these first.
	for _, name := range []string{"inventory.img", "descriptors.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("checkpoint %q: not the image of a container, there is no %s: %w",
				dir, name, errdefs.ErrInvalidArgument)
		} else if err != nil {
			return fmt.Errorf("checkpoint %q: %w", dir, err)
		}
	}
	return nil
}

// withLog calls f with a directory for criu's log, and adds the cause from the log to an error of f. The directory is
// dir, or if that is empty, one in the bundle that is kept only with a cause.
func (c *container) withLog(dir, log string, f func(dir string) error) error {
	temporary := dir == ""
	var err error
	if temporary {
		dir, err = os.MkdirTemp(c.config.Bundle, "criu-")
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("directory for the log of criu: %w", err)
	}
	if err = f(dir); err != nil {
		path := filepath.Join(dir, log)
		if cause := criuCause(path); cause != "" {
			return fmt.Errorf("%w: %s (see %s)", err, cause, path)
		}
	}
	if temporary {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// criuCause is the first error in a log of criu, from which the others follow; "" for none.
func criuCause(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	return firstError(f)
}

func firstError(log io.Reader) string {
	for s := bufio.NewScanner(log); s.Scan(); {
		if _, cause, ok := strings.Cut(s.Text(), "Error "); ok {
			return cause
		}
	}
	return ""
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

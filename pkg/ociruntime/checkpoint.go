// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Checkpoint implements process.Runtime. What a failed one wrote to r.Path is
// removed if the directory was not there before.
func (c *container) Checkpoint(r process.CheckpointRequest) error {
	if err := findCriu(c.config.CriuPath); err != nil {
		return err
	}
	opts, err := dumpOpts(r)
	if err != nil {
		return err
	}
	state, err := c.lc.State()
	if err != nil {
		return err
	}
	if err := sameNamespaces(state.Config.Namespaces, state.InitProcessPid); err != nil {
		return err
	}
	existed := isDir(r.Path)
	defer c.engine.reaper.Hold()() // criu and the helpers that it runs
	return c.withLog(r.WorkPath, "dump.log", func(dir string) error {
		opts.WorkDirectory = dir
		err := c.lc.Checkpoint(opts)
		if err != nil && !existed {
			err = errors.Join(err, os.RemoveAll(r.Path))
		}
		return err
	})
}

// sameNamespaces refuses paths that no longer name the namespace of pid that they named when it was made: libcontainer
// reads them again and tells CRIU that this is the one it need not write down. Of a process that has ended, as of a
// descriptor that was closed, nothing is there or something else is.
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
			return fmt.Errorf("config.json: linux.namespaces: path %q of type %s no longer names the namespace that the container is in: %w", ns.Path, ns.Type, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// prepare makes a container without a process, for Restore.
func (e *Engine) prepare(c process.Config, config *configs.Config) (*container, error) {
	if err := findCriu(c.CriuPath); err != nil {
		return nil, err
	}
	if err := checkImage(c.Checkpoint); err != nil {
		return nil, err
	}
	m, err := newManager(config, nil)
	if err != nil {
		return nil, err
	}
	lc, err := libcontainer.Create(c.Root, c.ID, config)
	if err != nil {
		return nil, classify(err)
	}
	return &container{
		engine: e, config: c, lc: lc, manager: m, cgroup: cgroup.New(m.GetPaths()),
		stateDir: stateDir(c.Root, c.ID), ownsPIDs: config.Namespaces.IsPrivate(configs.NEWPID),
		spawning: make(chan struct{}, 1),
	}, nil
}

// Restore implements process.Runtime. CRIU makes init a child of the shim and
// not its own (criu(8), --restore-sibling), so init is waited for like one that
// libcontainer started.
func (c *container) Restore(ctx context.Context, s *stdio.Streams) (process.Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	init, err := libcontainerProcess(c.config.Spec.Process, s)
	if err != nil {
		return nil, err
	}
	defer c.engine.reaper.Hold()()
	group := c.lc.Config().Cgroups // now: a restore writes to the rest of the configuration
	kill := func() { killMembers(c.config.ID, group, nil) }
	stop := interrupt(ctx, kill) // criu is a member while it restores
	err = c.withLog(c.config.CriuWorkPath, "restore.log", func(dir string) error {
		// What the checkpoint was allowed to contain it may contain.
		opts := criuOpts(c.config.Checkpoint, dir)
		opts.TcpEstablished, opts.ExternalUnixConnections, opts.FileLocks = true, true, true
		return c.lc.Restore(init, opts)
	})
	stop()
	if err != nil && ctx.Err() != nil { // criu was killed
		err = fmt.Errorf("interrupted: %w: %w", context.Cause(ctx), err)
	}
	if err == nil {
		var h *handle
		if h, err = c.restored(ctx, init, s); err == nil {
			return h, nil
		}
	}
	kill()
	if _, none := init.Pid(); none == nil {
		_ = init.Signal(unix.SIGKILL) // dead already is as good
		_, _ = init.Wait()            // as above; the error that matters is the other
	}
	return nil, err
}

// restored takes over init, which runs.
func (c *container) restored(ctx context.Context, init *libcontainer.Process, s *stdio.Streams) (*handle, error) {
	// libcontainer v1.5.2 does not note when a restored init began, which is how
	// it recognises one, but in the state on disk.
	lc, err := libcontainer.Load(c.config.Root, c.config.ID)
	if err != nil {
		return nil, err
	}
	c.lc = lc
	boundDepth(c.config.ID, c.cgroup, c.config.Spec.Linux.Resources)
	if err := s.Started(ctx); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return newHandle(c.engine.reaper, init)
}

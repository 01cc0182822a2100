// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Checkpoint implements process.RuntimeContainer. If it fails, it removes r.Path, unless that directory existed before.
func (c *container) Checkpoint(r process.CheckpointRequest) error {
	if err := criu.Find(c.config.CriuPath); err != nil {
		return err
	}
	opts, err := criu.DumpOptions(r)
	if err != nil {
		return err
	}
	lc, err := c.load()
	if err != nil {
		return err
	}
	state, err := lc.State()
	if err != nil {
		return err
	}
	if err := cmp.Or(
		criu.CheckNamespaces(state.Config.Namespaces, state.InitProcessPid), criu.CheckMounts(&state.Config),
	); err != nil {
		return err
	}
	err = os.Mkdir(r.Path, 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	defer c.runtime.reaper.Suspend()() // criu and the helpers that it runs
	err = classify(criu.WithLog(c.config.Bundle, r.WorkPath, "dump.log", func(dir string) error {
		opts.WorkDirectory = dir
		return lc.Checkpoint(opts)
	}))
	if err != nil && made {
		err = errors.Join(err, os.RemoveAll(r.Path))
	}
	return err
}

// Restore implements process.RuntimeContainer. CRIU makes init a child of the shim (criu(8), --restore-sibling).
func (c *container) Restore(ctx context.Context, s *stdio.Streams) (process.Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	init, err := translate.Process(c.config.Spec.Process, s)
	if err != nil {
		return nil, err
	}
	if c.lc.Config().Cgroups.Systemd {
		defer systemd.Connected()()
		if err := systemd.Await(ctx); err != nil { // which libcontainer asks for the scope, without a limit
			return nil, err
		}
	}
	defer c.runtime.reaper.Suspend()()
	by := libcontainerStarter{c.runtime.reaper}
	kill := by.interruption(c, true) // criu is in the cgroup while it restores
	h, err := by.begin(ctx, init, s, kill, func() error { return c.restoreImage(init) })
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
	if err := criu.CheckMounts(&config); err != nil {
		return err
	}
	err := criu.WithLog(c.config.Bundle, c.config.CriuWorkPath, "restore.log", func(dir string) error {
		return c.lc.Restore(init, criu.RestoreOptions(c.config.Checkpoint, dir))
	})
	if err != nil {
		return err
	}
	// libcontainer v1.5.2 recognises a restored init by its start time, which it knows only from the state on disk.
	if c.lc, err = c.load(); err != nil {
		return err
	}
	return c.limitRest()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Statuses of a command that did not end by itself, as programs like timeout(1) have them. A shell's 126 and 127, for a
// command that cannot be run or is not found, come from the guest.
const (
	StatusTimeout = 124
	StatusFailed  = 125
)

var (
	// errTimeout ends a command that does not end within Config.Timeout.
	errTimeout = errors.New("timeout")
	// errNoSign ends a guest that has not begun the command within Config.BootTime.
	errNoSign = errors.New("no sign of the guest")
)

// attempts bounds how often a guest is booted until the command begins.
const attempts = 3

// Run boots a guest, runs the command in it and returns the command's exit status. When ctx ends, so does the guest. At
// its return no process and no file of the guest is left.
func Run(ctx context.Context, c Config) (int, error) {
	if err := Check(c); err != nil {
		return StatusFailed, err
	}
	dir, err := os.MkdirTemp("", "vmrun-")
	if err != nil {
		return StatusFailed, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the result counts more than a file in the way
	args, err := prepare(ctx, c, dir)
	if err != nil {
		return StatusFailed, err
	}
	for attempt := 1; ; attempt++ {
		status, err := boot(ctx, c, args)
		// Nothing of the command has happened yet, so another guest does no harm.
		if !errors.Is(err, errNoSign) || attempt == attempts {
			return status, err
		}
		fmt.Fprintf(c.Stderr, "vmrun: boot %d of %d: %v\n", attempt, attempts, err)
	}
}

// prepare writes what the guest boots from into dir and returns qemu's arguments.
func prepare(ctx context.Context, c Config, dir string) ([]string, error) {
	c.Share = slices.Clone(c.Share)
	for i, shared := range c.Share {
		path, err := filepath.Abs(shared)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return nil, fmt.Errorf("shared directory: %w", err)
		}
		c.Share[i] = path
	}
	k, err := findKernel(ctx, c.Kernel, c.Arch)
	if err != nil {
		return nil, err
	}
	busybox := filepath.Join(c.Root, "bin/busybox")
	if c.Root == "" {
		if busybox, err = lookPath("busybox"); err != nil {
			return nil, err
		}
	}
	b, err := makeBase(ctx, k, busybox)
	if err != nil {
		return nil, err
	}
	first, err := os.ReadFile(b.initrd)
	if err != nil {
		return nil, err
	}
	second, err := runInitramfs(c, k)
	if err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, append(first, second...), 0o600); err != nil {
		return nil, err
	}
	var disk string
	if c.Disk != "" {
		disk = filepath.Join(dir, "disk")
		if _, err := output(ctx, dir, "mkfs.ext4", "-q", disk, c.Disk); err != nil {
			return nil, err
		}
	}
	return arguments(c, b, initrd, disk), nil
}

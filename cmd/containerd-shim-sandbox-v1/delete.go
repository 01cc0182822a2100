// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/wire"
)

// deleteTimeout stays below the 5 s after which containerd kills `delete` (io.containerd.timeout.shim.cleanup), so
// that it gets an answer and not a signal. It counts from when containerd started this process: on a machine that is
// short of CPU or memory, where shims die, the way to the first line of Go can take a good part of it.
const deleteTimeout = 4500 * time.Millisecond

// removeFunc is the form of remove.
type removeFunc func(ctx context.Context, namespace, id, bundle string) (exit, error)

// deleteBundle answers `delete`: it removes everything of the container, within a bound, and writes a DeleteResponse to
// stdout. The
// daemon is usually dead; where it serves other containers of the group it and its socket stay.
//
// containerd calls it twice and for all containers of a pod at once, and removes the bundle when it succeeds.
func deleteBundle(f flags, stdout io.Writer, within time.Duration, remove removeFunc) error {
	log.L.Logger.SetOutput(os.Stderr) // containerd logs it as a warning
	if err := log.SetLevel(log.WarnLevel.String()); err != nil {
		return err
	}
	bundle, err := bundleOf(f)
	if err != nil {
		return fmt.Errorf("delete %q: %w", f.id, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	e, err := remove(ctx, f.namespace, f.id, bundle)
	if err != nil {
		return fmt.Errorf("delete %q: %w", f.id, err)
	}
	// After remove, which may itself end the daemon. A socket that stays is no reason to keep the bundle.
	if err := deleteSocket(ctx, f, bundle); err != nil {
		log.L.WithError(err).Warn("the shim's socket may be left")
	}
	r := &api.DeleteResponse{Pid: uint32(e.Pid), ExitStatus: uint32(e.Status)}
	if !e.At.IsZero() {
		r.ExitedAt = timestamppb.New(e.At)
	}
	data, err := wire.Marshal(r)
	if err != nil {
		return fmt.Errorf("delete %q: encode answer: %w", f.id, err)
	}
	_, err = stdout.Write(data)
	return err
}

// age is how long this process has existed, to a hundredth of a second; 0 where the kernel does not say it.
func age() time.Duration {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything; proc_pid_stat(5) counts the fields from 1 and it is the second.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return 0
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 64)
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	const tick = time.Second / 100 // USER_HZ, the same on every architecture that Go has
	return time.Duration(now.Nano()) - time.Duration(ticks)*tick
}

// bundleOf is -bundle, or the working folder when that is the container's.
func bundleOf(f flags) (string, error) {
	if f.bundle != "" {
		return filepath.Clean(f.bundle), nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if filepath.Base(cwd) != f.id {
		return "", fmt.Errorf("-bundle is not given and the working folder %q is not that of id %q: %w", cwd, f.id, errdefs.ErrInvalidArgument)
	}
	return cwd, nil
}

// deleteSocket removes the socket of the container's group if no shim listens on it.
func deleteSocket(ctx context.Context, f flags, bundle string) error {
	g, err := group(bundle, f.id)
	if err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
		return err
	}
	if err != nil {
		g = f.id // config.json is broken, so start cannot have read a group from it
	}
	path := recordedSocket(bundle, f.address, f.namespace, g)
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*hangTimeout)
	defer cancel()
	if alive, err := serves(ctx, path, f.id); err != nil || alive {
		return err
	}
	return removeDeadSocket(ctx, path)
}

// hangTimeout is for the answer of a shim that is alive. One that hangs is: its containers are not to be taken from it.
const hangTimeout = time.Second

// How long serves waits before it tries again: a shim that was killed is dead within milliseconds, while want of memory or
// descriptors may last.
const (
	firstAgain = 2 * time.Millisecond
	lastAgain  = 100 * time.Millisecond
)

// serves reports whether a living shim listens on socket. It is dead if the kernel says that nobody listens there: connect(2) is
// refused, or there is no socket. No other error proves that, so the rest is tried again until ctx ends, which is an error
// then: this process or the machine may lack descriptors or memory, and so may the shim, and then hangs up on us. A shim that
// dies does as well: while a process of many threads dies, its sockets are open for some milliseconds more, and what
// connects then is reset; what connects after that is refused.
func serves(ctx context.Context, socket, id string) (bool, error) {
	began := time.Now()
	for tries, wait := 1, firstAgain; ; tries, wait = tries+1, min(2*wait, lastAgain) {
		try, cancel := context.WithTimeout(ctx, hangTimeout)
		err := ping(try, socket, id)
		hangs := try.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
			return false, nil
		case err == nil, hangs:
			return true, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false, fmt.Errorf("socket %s: it neither answers nor is it refused, %d tries in %v: %w: %w",
				socket, tries, time.Since(began).Round(time.Millisecond), err, errdefs.ErrUnavailable)
		}
	}
}

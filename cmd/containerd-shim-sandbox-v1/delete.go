// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/process"
)

// deleteTimeout stays below the 5 s after which containerd kills `delete` (io.containerd.timeout.shim.cleanup), so that
// it gets an answer and not a signal. It counts from when containerd started this process: on a machine that is short
// of CPU or memory, where shims die, getting to the first line of Go can take a good part of it.
const deleteTimeout = 4500 * time.Millisecond

// deleteSlack is how long after its bound deleteBundle waits for what looks at no bound, such as a file system that
// hangs.
const deleteSlack = 250 * time.Millisecond

// deleteBundle answers `delete`: it removes everything of the container with r, within a bound, and writes a
// DeleteResponse to stdout. The daemon is usually dead. One that serves other containers of the group stays, and its
// socket too. If a step does not end within the bound, the error has stacks.
//
// containerd calls it twice and for all containers of a pod at the same time, and removes the bundle when it succeeds.
func deleteBundle(f flags, stdout io.Writer, within time.Duration, r cleanup.Request) error {
	log.L.Logger.SetOutput(os.Stderr) // containerd logs it as a warning
	log.L.Logger.SetLevel(log.WarnLevel)
	var answer []byte
	done := make(chan error, 1)
	go func() { // if it is late, it ends with the process
		var err error
		answer, err = removeBundle(f, within, r)
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(max(within, 0) + deleteSlack):
		stacks := make([]byte, 16<<10)
		stacks = stacks[:runtime.Stack(stacks, true)]
		err = fmt.Errorf("not done %v after it began; under way:\n%s", age().Round(time.Millisecond), stacks)
	}
	if err != nil {
		return fmt.Errorf("delete %q: %w", f.ID, err)
	}
	_, err = stdout.Write(answer)
	return err
}

func removeBundle(f flags, within time.Duration, r cleanup.Request) (answer []byte, err error) {
	r.Namespace, r.ID = f.Namespace, f.ID
	if r.Bundle, err = bundleOf(f); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	pid, exit, err := r.Run(ctx)
	// This comes after Run, which may itself end the daemon, and even if Run failed: containerd removes the bundle of a
	// failed create anyway, and with it the way to the socket. A socket that stays is no reason to keep the bundle.
	if err := bootstrap.RemoveSocket(ctx, r.Bundle); err != nil {
		log.L.WithError(err).Warn("the shim's socket may be left")
	}
	if err != nil {
		return nil, err
	}
	return deleteAnswer(pid, exit)
}

// deleteAnswer returns what `delete` prints about a container's init.
func deleteAnswer(pid int, exit process.Exit) ([]byte, error) {
	return proto.Marshal(&taskapi.DeleteResponse{
		Pid: uint32(pid), ExitStatus: uint32(exit.Status), ExitedAt: timestamppb.New(exit.At),
	})
}

// age returns how long this process has existed, to a hundredth of a second, or 0 if the kernel does not say.
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

// bundleOf returns -bundle, or the working directory if that is the container's.
func bundleOf(f flags) (string, error) {
	if f.bundle != "" {
		return filepath.Clean(f.bundle), nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if filepath.Base(cwd) != f.ID {
		return "", fmt.Errorf("-bundle is not given and the working directory %q is not that of id %q: %w",
			cwd, f.ID, errdefs.ErrInvalidArgument)
	}
	return cwd, nil
}

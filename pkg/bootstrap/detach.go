// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

// #include "detach.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// checkDetached returns why this process is the one that containerd waits for, when it should be one that detach.c split off.
func checkDetached() error {
	if C.detached.error != 0 {
		return fmt.Errorf("fork the daemon: %w", syscall.Errno(C.detached.error))
	}
	if C.detached.original < 0 {
		return errors.New("fork the daemon: start has to be the last argument of the process")
	}
	return nil
}

// caller is the pid of who ran start: containerd's.
func caller() int { return int(C.detached.caller) }

// detach makes this process the daemon that d describes, in the existing cgroup of that name if it is not empty, and answers
// containerd. After an error it has not, or the answer does not count, since the original process ends with failure too. It is called on the
// main thread.
func detach(ctx context.Context, d Daemon, cgroup string, answer []byte) error {
	if err := settle(d, cgroup); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	defer func() { _ = null.Close() }() // nothing is written to it
	if err := reply(ctx, syscall.Stdout, answer); err != nil {
		return err
	}
	// containerd waits until nobody holds its end of our stdout.
	for fd := range firstFD {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("start daemon: let go of descriptor %d: %w", fd, err)
		}
	}
	// It is the main thread that the kernel is to kill with the original process.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("start daemon: outlive start: %w", err)
	}
	original := os.NewFile(uintptr(C.detached.original), "start")
	defer func() { _ = original.Close() }() // all is written
	if _, err := original.Write([]byte{0}); err != nil {
		return fmt.Errorf("start daemon: start was killed: %w", err)
	}
	return nil
}

// firstFD is the first descriptor after stdio.
const firstFD = 3

// settle gives this process what the daemon has of its own.
func settle(d Daemon, cgroup string) error {
	// A group of its own keeps a terminal's signals and kills of containerd's group away. Not a session of its own: the
	// leader of a session takes the first terminal it opens as its controlling one, and shims open terminals.
	if err := unix.Setpgid(0, 0); err != nil {
		return fmt.Errorf("start daemon: make process group: %w", err)
	}
	if cgroup != "" {
		if err := joinCgroup(cgroup); err != nil {
			return err
		}
	}
	if err := raiseOOMScore("/proc", caller()); err != nil {
		log.L.WithError(err).Warn("the shim keeps the OOM score of its parent")
	}
	if os.Getenv("SCHED_CORE") != "" {
		// Asked for to keep workloads off each other's cores, so refusing is right where the kernel cannot.
		if err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, pidTypePgid, 0); err != nil {
			return fmt.Errorf("SCHED_CORE: make core scheduling domain: %w", err)
		}
	}
	// What it executes, loggers say, finds these where containerd's own shims have them (pkg/shim/util.go).
	for name, value := range map[string]string{
		"TTRPC_ADDRESS": d.TTRPCAddress, "GRPC_ADDRESS": d.Address, "NAMESPACE": d.Namespace,
		"OTEL_SERVICE_NAME": "containerd-shim-" + d.ID,
	} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("start daemon: set %s: %w", name, err)
		}
	}
	args := []string{Program, "-namespace", d.Namespace, "-id", d.ID, "-address", d.Address}
	if d.Debug {
		args = append(args, "-debug")
	}
	showArgs(args)
	return nil
}

// pidTypePgid is PIDTYPE_PGID of include/linux/pid.h: the domain is for the whole process group, each thread included.
const pidTypePgid = 2

// showArgs has ps show other arguments than those of start, cut off where there is no more room. Those of the daemon fit, if
// containerd says the same address twice.
func showArgs(args []string) {
	shown := unsafe.Slice((*byte)(unsafe.Pointer(C.detached.args)), int(C.detached.size))
	clear(shown[copy(shown[:len(shown)-1], strings.Join(args, "\x00")):])
}

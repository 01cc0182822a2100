// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

// #include "detach.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// checkDetached returns why detach.c has not split this process off the one that containerd waits for.
func checkDetached() error {
	if C.detached.error != 0 {
		return fmt.Errorf("fork the daemon: %w", syscall.Errno(C.detached.error))
	}
	if C.detached.original < 0 {
		return errors.New("fork the daemon: start has to be the last argument of the process")
	}
	return nil
}

// caller returns the pid of the process that ran start: containerd's.
func caller() int { return int(C.detached.caller) }

// detach makes this process the daemon that d describes and answers containerd. If it fails, it has not answered, or
// the answer does not count, since the original process fails too. It is called on the main thread.
func detach(d Daemon, answer []byte) error {
	if err := initDaemon(d); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	defer func() { _ = null.Close() }() // nothing is written to it
	if err := reply(answer); err != nil {
		return err
	}
	// containerd waits until nobody holds its end of our stdout.
	for fd := range syscall.Stderr + 1 {
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
	dropSignals() // not sooner: it starts a thread, for which containerd would wait
	return nil
}

// showArgs makes ps show args instead of the arguments of start, cut off if there is no more room. Those of the daemon
// fit, unless containerd sends another address on stdin.
func showArgs(args []string) {
	shown := unsafe.Slice((*byte)(unsafe.Pointer(C.detached.args)), int(C.detached.size))
	clear(shown[copy(shown[:len(shown)-1], strings.Join(args, "\x00")):])
}

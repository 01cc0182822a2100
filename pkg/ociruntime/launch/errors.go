// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// The words are libcontainer's, on which Docker depends (see pkg/ociruntime/errors.go).

// ErrNotJoined is that a process cannot be started in Command.Unified, though there may be another way into it.
var ErrNotJoined = errors.New("cannot start a process in the cgroup")

// ErrNotStarted is that the program may not be run any more. Root of a container that is root outside too owns the file
// and may have taken the permission. Nothing was started.
var ErrNotStarted = errors.New("start launcher")

// notJoined: at the limit of processes (Documentation/admin-guide/cgroup-v2.rst, PID) no way leads in.
func notJoined(dir string) func(unix.Errno, uint32) error {
	return func(errno unix.Errno, _ uint32) error {
		if errno == unix.EAGAIN {
			return fmt.Errorf("error adding process to cgroup %s: %w", dir, errno)
		}
		return fmt.Errorf("%w %s: %w", ErrNotJoined, dir, errno)
	}
}

func decimal(n int) string { return strconv.Itoa(n) }

func plain(errno unix.Errno, _ uint32) error { return errno }

func named(what string) func(unix.Errno, uint32) error {
	return func(errno unix.Errno, _ uint32) error { return fmt.Errorf("%s: %w", what, errno) }
}

func chdirFailed(cwd string) func(unix.Errno, uint32) error {
	return named(fmt.Sprintf("chdir to cwd (%q) set in config.json failed", cwd))
}

func unmapped(kind string, id int) func(unix.Errno, uint32) error {
	return func(errno unix.Errno, _ uint32) error {
		if errno == unix.EINVAL {
			return fmt.Errorf("unable to setup user: cannot set%s to unmapped %s %d in user namespace", kind, kind, id)
		}
		return fmt.Errorf("unable to setup user: %w", errno)
	}
}

func notGiven(errno unix.Errno, stream uint32) error {
	names := []string{"/dev/stdin", "/dev/stdout", "/dev/stderr"}
	return fmt.Errorf("unable to setup user: chown %s: %w", names[stream%3], errno)
}

func notInside(errno unix.Errno, _ uint32) error {
	if errno == unix.ENOENT {
		return errors.New("current working directory is outside of container mount namespace root -- possible container breakout detected")
	}
	return fmt.Errorf("failed to verify if current working directory is safe: getwd: %w", errno)
}

func notFound(name string) func(unix.Errno, uint32) error {
	return func(errno unix.Errno, detail uint32) error {
		switch detail {
		case C.LOOKUP_STAT:
			return &exec.Error{Name: name, Err: &fs.PathError{Op: "stat", Path: name, Err: errno}}
		case C.LOOKUP_NONE:
			return &exec.Error{Name: name, Err: exec.ErrNotFound}
		case C.LOOKUP_DOT:
			return &exec.Error{Name: name, Err: exec.ErrDot}
		}
		return &exec.Error{Name: name, Err: errno}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// sentinelClasses are libcontainer's sentinels, each with the class that it stands for. It has few: other errors are
// recognised by the text that v1.5.2 has. Tests provoke each of them.
var sentinelClasses = []struct{ sentinel, class error }{
	{libcontainer.ErrExist, errdefs.ErrAlreadyExists},
	{libcontainer.ErrNotExist, errdefs.ErrNotFound},
	{libcontainer.ErrCgroupNotExist, errdefs.ErrNotFound},
	{libcontainer.ErrNotRunning, errdefs.ErrFailedPrecondition},
}

// classify adds the class of a sentinel to err.
func classify(err error) error {
	for _, c := range sentinelClasses {
		if errors.Is(err, c.sentinel) {
			return fmt.Errorf("%w: %w", err, c.class)
		}
	}
	return err
}

// startError returns the error for a process that did not start, without what libcontainer says of every such error.
// The text about a program that cannot be run is os/exec.LookPath's; Docker derives the statuses 126 and 127 from it.
func startError(err error, args []string) error {
	for _, words := range []string{"unable to start container process", "error during container init"} {
		reason := errors.Unwrap(err)
		if reason != nil && err.Error() == words+": "+reason.Error() && !isErrno(reason.Error()) {
			err = reason
		}
	}
	if strings.Contains(err.Error(), fmt.Sprintf("exec: %q: ", args[0])) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return classify(err)
}

// isErrno reports whether a text of libcontainer's init is that of an errno, and says nothing of a call.
func isErrno(text string) bool {
	const after = unix.EHWPOISON + 1
	for errno := range after {
		if errno.Error() == text {
			return true
		}
	}
	return false
}

// createError names the part of config.json because of which no container could be made, if the text of err says so.
func createError(err error, linux *specs.Linux) error {
	switch text := err.Error(); {
	case containsAny(text, "cgroup is not empty", "cgroup unexpectedly frozen", "unable to apply cgroup configuration"):
		return fmt.Errorf("linux.cgroupsPath %q: %w: %w", linux.CgroupsPath, err, errdefs.ErrFailedPrecondition)
	case len(linux.Sysctl) > 0 && containsAny(text, `sysctl "`, "open sysctl ", "write sysctl "):
		return fmt.Errorf("linux.sysctl: %w: %w", err, errdefs.ErrInvalidArgument)
	case containsAny(text, "mounting") && containsAny(text, unix.ENOSYS.Error()): // mount_setattr
		return fmt.Errorf("mounts need Linux 5.12: %w: %w", err, errdefs.ErrNotImplemented)
	case strings.Contains(text, "without a private UTS namespace"):
		return fmt.Errorf("linux.namespaces: %w: %w", err, errdefs.ErrInvalidArgument)
	case strings.Contains(text, "error setting cgroup config"):
		return resourcesError(err, nil)
	}
	return err
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// valueErrnos are the kernel's answers to a value that is invalid. Other answers are about what is there now.
var valueErrnos = []unix.Errno{unix.EINVAL, unix.ERANGE, unix.ENODEV, unix.ENXIO, unix.EOVERFLOW, unix.E2BIG}

// resourcesError returns the error for limits that a cgroup refuses; c is nil if that cannot be gone.
func resourcesError(err error, c *cgroup.Cgroup) error {
	var class error = errdefs.ErrFailedPrecondition
	errno, _ := errors.AsType[unix.Errno](err)           // 0 is in no list
	_, isNumber := errors.AsType[*strconv.NumError](err) // libcontainer parses some values for systemd
	switch {
	case c != nil && !c.Exists():
		err, class = fmt.Errorf("cgroup %s is gone: %w", c, err), errdefs.ErrNotFound
	case isNumber || slices.Contains(valueErrnos, errno):
		class = errdefs.ErrInvalidArgument
	}
	return fmt.Errorf("linux.resources: %w: %w", err, class)
}

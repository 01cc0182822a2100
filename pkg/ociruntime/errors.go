// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
)

// classify gives an error of libcontainer its class. It has sentinels for some
// only; the others stay unknown.
func classify(err error) error {
	switch {
	case errors.Is(err, libcontainer.ErrExist):
		return fmt.Errorf("%w: %w", err, errdefs.ErrAlreadyExists)
	case errors.Is(err, libcontainer.ErrNotExist), errors.Is(err, libcontainer.ErrCgroupNotExist):
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, libcontainer.ErrInvalidID), errors.Is(err, os.ErrInvalid):
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, libcontainer.ErrNotRunning), errors.Is(err, libcontainer.ErrPaused):
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return err
}

// createError is classify for what libcontainer refuses before it makes
// anything. A cgroup that another container uses it tells by its words alone.
func createError(err error, cgroupsPath string) error {
	// libcontainer v1.5.2 Create. TestCreateRefusesACgroupInUse and
	// TestCreateRefusesAFrozenCgroup run into them.
	for _, words := range []string{"cgroup is not empty", "cgroup unexpectedly frozen"} {
		if strings.Contains(err.Error(), words) {
			return fmt.Errorf("linux.cgroupsPath %q: %w: %w", cgroupsPath, err, errdefs.ErrFailedPrecondition)
		}
	}
	return classify(err)
}

// startError is classify for an error from inside the container, which reaches
// us as text: a program that cannot be run is the caller's to mend. Docker tells
// its exit statuses 126 and 127 by libcontainer's words, so they are kept.
func startError(err error, args []string) error {
	// libcontainer v1.5.2 passes on what os/exec.LookPath says (exec.Error).
	// TestStartError runs into it on purpose.
	if strings.Contains(err.Error(), fmt.Sprintf("exec: %q: ", args[0])) {
		return fmt.Errorf("process.args[0] %q: %w: %w", args[0], err, errdefs.ErrInvalidArgument)
	}
	return classify(err)
}

// sysctlError names the sysctl that libcontainer refuses, or that the kernel
// does: each is the caller's to mend.
func sysctlError(err error, sysctls map[string]string) error {
	for name, value := range sysctls {
		// libcontainer v1.5.2: configs/validate, and what init says of the file.
		// TestASysctlThatCannotBeIsNamed runs into them.
		for _, words := range []string{
			fmt.Sprintf("sysctl %q ", name), "open sysctl " + name + " file: ", "write sysctl " + name + " = ",
		} {
			if strings.Contains(err.Error(), words) {
				return fmt.Errorf("linux.sysctl[%q] %q: %w: %w", name, value, err, errdefs.ErrInvalidArgument)
			}
		}
	}
	return err
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/resources"
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

// cgroupError names the field because of which init could not be put into its
// cgroup, or the cgroup could not be given its limits. libcontainer v1.5.2
// process_linux.go tells these from other errors by its words alone.
func cgroupError(err error, linux *specs.Linux) error {
	switch text := err.Error(); {
	case strings.Contains(text, "unable to apply cgroup configuration"):
		return fmt.Errorf("linux.cgroupsPath %q: %w: %w", linux.CgroupsPath, err, errdefs.ErrFailedPrecondition)
	case strings.Contains(text, "error setting cgroup config") && linux.Resources != nil:
		return limitError(err, linux.Resources)
	}
	return err
}

func limitError(err error, r *specs.LinuxResources) error {
	if class := errnoClass(err); class != nil {
		err = fmt.Errorf("%w: %w", err, class)
	}
	var missing *fs.PathError
	if errors.As(err, &missing) && errors.Is(missing, fs.ErrNotExist) {
		controller, _, _ := strings.Cut(filepath.Base(missing.Path), ".")
		err = fmt.Errorf("the cgroup has no such file of the %s controller: %w", controller, err)
	}
	field := "linux.resources"
	if names := refused(err, resources.Fields(r), cgroups.Mode() == cgroups.Unified); names != "" {
		field += "." + names
	}
	return fmt.Errorf("%s: %w", field, err)
}

// updateError names the field of which the kernel refused the file, and gives
// the error its class.
func updateError(err error, fields []resources.Field, c *cgroup.Cgroup) error {
	class := errnoClass(err)
	if !c.Exists() {
		err = fmt.Errorf("cgroup %s is gone: %w", c, err)
		class = errdefs.ErrNotFound // alone: containerd looks for the first class that it finds
	}
	if class != nil {
		err = fmt.Errorf("%w: %w", err, class)
	}
	if names := refused(err, fields, c.Unified()); names != "" {
		return fmt.Errorf("linux.resources.%s: %w", names, err)
	}
	return fmt.Errorf("linux.resources: %w", err)
}

// refused are the names of the fields that are written to the file of err. Some
// share one, cpu.max for example.
func refused(err error, fields []resources.Field, unified bool) string {
	// libcontainer cgroups v0.1.0 fs/memory.go answers EBUSY by these words alone.
	if strings.Contains(err.Error(), "unable to set memory limit") {
		return "memory.limit"
	}
	// fs2/fs2.go and systemd/v2.go name a key of unified before the file.
	for _, f := range fields {
		if key, ok := strings.CutPrefix(f.Name, "unified["); ok && strings.Contains(err.Error(), "unified resource "+strings.TrimSuffix(key, "]")) {
			return f.Name
		}
	}
	pathError, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return ""
	}
	file := filepath.Base(pathError.Path)
	var names []string
	for _, f := range fields {
		for _, pattern := range f.Files(unified) {
			if ok, err := path.Match(pattern, file); ok && err == nil {
				names = append(names, f.Name)
				break
			}
		}
	}
	return strings.Join(names, ", ")
}

// errnoClass is the class of what the kernel answers to a write to a control
// file, or nil: a value that it does not take, or that does not fit what is
// there now. libcontainer reads some values itself for systemd.
func errnoClass(err error) error {
	if _, ok := errors.AsType[*strconv.NumError](err); ok {
		return errdefs.ErrInvalidArgument
	}
	errno, _ := errors.AsType[unix.Errno](err) // 0 is in no list
	switch {
	case slices.Contains(valueErrnos, errno):
		return errdefs.ErrInvalidArgument
	case slices.Contains(stateErrnos, errno):
		return errdefs.ErrFailedPrecondition
	}
	return nil
}

var (
	valueErrnos = []unix.Errno{unix.EINVAL, unix.ERANGE, unix.ENODEV, unix.ENXIO, unix.EOVERFLOW, unix.E2BIG}
	stateErrnos = []unix.Errno{unix.EBUSY, unix.ENOSPC, unix.EACCES, unix.ENOENT, unix.EOPNOTSUPP}
)

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package ocierrors gives errors of libcontainer v1.5.2 their classes, and the names of the fields that they are about.
// libcontainer has sentinels for some errors only. The others are recognised by their text; a test of pkg/ociruntime
// provokes each of them, so a version of libcontainer with other texts fails a test.
package ocierrors

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

// sentinelClasses are libcontainer's sentinels, each with the class that it stands for.
var sentinelClasses = []struct{ sentinel, class error }{
	{libcontainer.ErrExist, errdefs.ErrAlreadyExists},
	{libcontainer.ErrNotExist, errdefs.ErrNotFound},
	{libcontainer.ErrCgroupNotExist, errdefs.ErrNotFound},
	{libcontainer.ErrInvalidID, errdefs.ErrInvalidArgument},
	{os.ErrInvalid, errdefs.ErrInvalidArgument},
	{libcontainer.ErrNotRunning, errdefs.ErrFailedPrecondition},
	{libcontainer.ErrPaused, errdefs.ErrFailedPrecondition},
}

// Classify adds the class of a sentinel to err.
func Classify(err error) error {
	for _, c := range sentinelClasses {
		if errors.Is(err, c.sentinel) {
			return fmt.Errorf("%w: %w", err, c.class)
		}
	}
	return err
}

// Start returns the error for a process that did not start: what libcontainer says of every such error is left out. A
// program that cannot be run is the caller's to fix; the text is what os/exec.LookPath says. Docker derives the exit
// statuses 126 and 127 from these words.
func Start(err error, args []string) error {
	for _, words := range []string{"unable to start container process", "error during container init"} {
		if reason := errors.Unwrap(err); reason != nil && err.Error() == words+": "+reason.Error() {
			err = reason
		}
	}
	if strings.Contains(err.Error(), fmt.Sprintf("exec: %q: ", args[0])) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return Classify(err)
}

// Create names the field of config.json because of which no container could be made, if the text of err says so.
func Create(err error, linux *specs.Linux) error {
	text := err.Error()
	for _, words := range []string{
		"cgroup is not empty", "cgroup unexpectedly frozen", "unable to apply cgroup configuration",
	} {
		if strings.Contains(text, words) {
			return fmt.Errorf("linux.cgroupsPath %q: %w: %w", linux.CgroupsPath, err, errdefs.ErrFailedPrecondition)
		}
	}
	// mount_setattr gives mounts attributes, recursively, and mappings of users.
	if strings.Contains(text, unix.ENOSYS.Error()) &&
		(strings.Contains(text, "error mounting") || strings.Contains(text, "MOUNT_ATTR_IDMAP")) {
		return fmt.Errorf("mounts need Linux 5.12: %w: %w", err, errdefs.ErrNotImplemented)
	}
	for _, words := range [][2]string{{`sysctl "`, `" `}, {"open sysctl ", " file: "}, {"write sysctl ", " = "}} {
		_, rest, _ := strings.Cut(text, words[0]) // once: there may be as many names as the text is long
		for name, value := range linux.Sysctl {
			if after, ok := strings.CutPrefix(rest, name); ok && strings.HasPrefix(after, words[1]) {
				return fmt.Errorf("linux.sysctl[%q] %.100q: %w: %w", name, value, err, errdefs.ErrInvalidArgument)
			}
		}
	}
	if linux.Resources != nil && strings.Contains(text, "error setting cgroup config") {
		return Limit(err, linux.Resources)
	}
	return err
}

// Limit returns the error for limits that a new cgroup refuses. As far as err tells, it names the fields of r and has a
// class.
func Limit(err error, r *specs.LinuxResources) error {
	class := errnoClass(err)
	if missing, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(missing, fs.ErrNotExist) {
		controller, _, _ := strings.Cut(filepath.Base(missing.Path), ".")
		err = fmt.Errorf("the cgroup has no such file of the %s controller: %w", controller, err)
	}
	return resourcesError(err, class, resources.Fields(r), cgroups.Mode() == cgroups.Unified)
}

// Update returns the error for limits that a container's cgroup c refuses.
func Update(err error, fields []resources.Field, c *cgroup.Cgroup) error {
	class := errnoClass(err)
	if !c.Exists() {
		err = fmt.Errorf("cgroup %s is gone: %w", c, err)
		class = errdefs.ErrNotFound // only this one: containerd takes the first class that it finds
	}
	return resourcesError(err, class, fields, c.Unified())
}

// resourcesError adds class, which may be nil, and the names of the fields whose file the kernel refused.
func resourcesError(err, class error, fields []resources.Field, unified bool) error {
	if class != nil {
		err = fmt.Errorf("%w: %w", err, class)
	}
	if names := refusedFields(err, fields, unified); names != "" {
		return fmt.Errorf("linux.resources.%s: %w", names, err)
	}
	return fmt.Errorf("linux.resources: %w", err)
}

// refusedFields returns the names of the fields written to the file of err. Some share one, cpu.max for example.
func refusedFields(err error, fields []resources.Field, unified bool) string {
	// libcontainer cgroups v0.1.0 fs/memory.go says no more than this for EBUSY.
	if strings.Contains(err.Error(), "unable to set memory limit") {
		return "memory.limit"
	}
	// fs2/fs2.go and systemd/v2.go name a key of unified before the file.
	_, rest, _ := strings.Cut(err.Error(), "unified resource ")
	for _, f := range fields {
		if key, ok := strings.CutPrefix(f.Name, "unified["); ok && strings.HasPrefix(rest, strings.TrimSuffix(key, "]")) {
			return f.Name
		}
	}
	pathError, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return ""
	}
	var names []string
	for _, f := range fields {
		if slices.ContainsFunc(f.Files(unified), func(pattern string) bool {
			matched, err := path.Match(pattern, filepath.Base(pathError.Path))
			return matched && err == nil
		}) {
			names = append(names, f.Name)
		}
	}
	return strings.Join(names, ", ")
}

// errnoClass returns the class of the kernel's answer to a write to a control file, or nil: the value is one that it
// does not take, or does not fit what is there now. For systemd libcontainer parses some values itself.
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

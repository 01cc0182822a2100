// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/resources"
)

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

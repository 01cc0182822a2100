// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/resources"
)

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
	if names := refused(err, resources.Fields(r), cgroup.Detect() == cgroup.Unified); names != "" {
		field += "." + names
	}
	return fmt.Errorf("%s: %w", field, err)
}

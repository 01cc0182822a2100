// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"io/fs"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
)

// boundDepth keeps a container from nesting cgroups without end, unless its configuration says how deep it may. It is written once,
// and not with each update: libcontainer does not know of it. A container runs without it too: none of our own walks needs it.
func boundDepth(containerID string, c *cgroup.Cgroup, r *specs.LinuxResources) {
	if r != nil {
		if _, asked := r.Unified[cgroup.DepthFile]; asked {
			return
		}
	}
	err := c.BoundDepth()
	switch {
	case err == nil:
	case errdefs.IsNotFound(err), errors.Is(err, fs.ErrPermission): // an old kernel; a shim without root
		log.L.WithError(err).WithField("container", containerID).Debug("cgroups may be nested without end")
	default:
		log.L.WithError(err).WithField("container", containerID).Warn("cgroups may be nested without end")
	}
}

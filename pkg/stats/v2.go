// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"github.com/containerd/cgroups/v3/cgroup2"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/cgroup"
)

// newV2 returns the function that reads the files of the one directory.
func newV2(c *cgroup.Cgroup) (func() (proto.Message, error), error) {
	// The group is given as the root of its own mount point: the reader joins the two and looks nowhere else, and it
	// refuses a group whose name begins with the usual mount point.
	m, err := cgroup2.Load("/", cgroup2.WithMountpoint(c.Path("")))
	if err != nil {
		return nil, err
	}
	return func() (proto.Message, error) {
		metrics, err := m.Stat()
		if err != nil {
			return nil, err // not metrics: a nil *Metrics in the interface would not be nil
		}
		return metrics, nil
	}, nil
}

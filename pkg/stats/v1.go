// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"sandbox.internal/shim/pkg/cgroup"
)

// foldersV1 lists what is read of a cgroup: a directory for each controller that is mounted, wherever that is.
func foldersV1(c *cgroup.Cgroup) []folder[*v1.Metrics] {
	var folders []folder[*v1.Metrics]
	add := func(controller string, sources func(dir string) []source[*v1.Metrics]) {
		if dir := c.Path(controller); dir != "" {
			folders = append(folders, folder[*v1.Metrics]{dir, sources(dir)})
		}
	}
	add("pids", pidsV1)
	add("cpu", cpuV1)
	add("cpuacct", cpuacctV1)
	add("memory", memoryV1)
	add("blkio", blkioV1)
	add("hugetlb", hugetlbV1)
	add("rdma", rdmaV1)
	return folders
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/cgroups/v3/cgroup1"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/cgroup"
)

// controller is one v1 controller of containerd/cgroups, which fills its part of m from the files below path.
type controller interface {
	Name() cgroup1.Name
	Stat(path string, m *v1.Metrics) error
}

// part is a controller with the path at which it finds its files.
type part struct {
	controller
	path string
}

// newV1 returns the function that reads all controllers for which the cgroup has a directory.
func newV1(c *cgroup.Cgroup) (func() (proto.Message, error), error) {
	// The controllers are rooted at "/" and get paths of their own, so that each hierarchy may be mounted anywhere.
	const root = "/"
	all := []controller{
		cgroup1.NewPids(root), cgroup1.NewCpu(root), cgroup1.NewCpuacct(root), cgroup1.NewBlkio(root), cgroup1.NewRdma(root),
		cgroup1.NewMemory(root, cgroup1.IgnoreModules(unaccounted(c.Path("memory"))...)),
	}
	if c.Path(string(cgroup1.Hugetlb)) != "" {
		hugetlb, err := cgroup1.NewHugetlb(root)
		if err != nil {
			return nil, fmt.Errorf("sizes of huge pages: %w", err)
		}
		all = append(all, hugetlb)
	}
	var parts []part
	for _, ctl := range all {
		dir := c.Path(string(ctl.Name()))
		if dir == "" {
			continue
		}
		// A controller puts its name between root and path: "/memory" + "/../sys/fs/cgroup/…". Join works on the text alone.
		parts = append(parts, part{ctl, filepath.Join("..", dir)})
	}
	return func() (proto.Message, error) { return readV1(parts) }, nil
}

func readV1(parts []part) (proto.Message, error) {
	// cpu and cpuacct share a message, so neither makes it.
	m := &v1.Metrics{CPU: &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{}}}
	for _, p := range parts {
		// A kernel may lack single files, and a cgroup that is gone is found out by the caller.
		if err := p.Stat(p.path, m); err != nil && !gone(err) {
			return nil, fmt.Errorf("%s: %w", p.Name(), err)
		}
	}
	return m, nil
}

// unaccounted returns which groups of memory files the kernel does not have: swap without CONFIG_SWAP or with
// swapaccount=0, kernel memory with cgroup.memory=nokmem. The reader stops at the first file that is missing, and the
// groups after it would be lost.
func unaccounted(dir string) []string {
	var missing []string
	for _, module := range []string{"memsw", "kmem", "kmem.tcp"} {
		if _, err := os.Lstat(filepath.Join(dir, "memory."+module+".usage_in_bytes")); err != nil {
			missing = append(missing, module)
		}
	}
	return missing
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup/hierarchy"
)

// ShmSizeAnnotation of a pod is the size of its /dev/shm, as a quantity of Kubernetes in whole numbers.
const ShmSizeAnnotation = "io.containerd.sandbox.v1/shm-size"

// defaultShmSize is that of CRI and of Docker.
const defaultShmSize = 64 << 20

// quantities are the suffixes of Kubernetes (pkg/api/resource), longest first.
var quantities = []struct {
	suffix string
	factor uint64
}{
	{"Ki", 1 << 10},
	{"Mi", 1 << 20},
	{"Gi", 1 << 30},
	{"Ti", 1 << 40},
	{"k", 1e3},
	{"M", 1e6},
	{"G", 1e9},
	{"T", 1e12},
}

// shmSize is that of the pod's /dev/shm. What a container writes there is charged to its cgroup, and that bounds it; but
// a size that no memory can be behind promises what is not there, and in a cgroup without a limit it is all of the machine's.
// Up to defaultShmSize there is no bound, as for a pod that does not ask.
func (r Request) shmSize(cgroupPath string) (uint64, error) {
	most, err := r.maxShmSize()
	if err != nil {
		return 0, err
	}
	value, ok := r.Config.Annotations[ShmSizeAnnotation]
	if !ok {
		return defaultShmSize, nil
	}
	size, ok := parseSize(value)
	if !ok {
		return 0, fmt.Errorf("annotation %s %q: must be %s: %w", ShmSizeAnnotation, value, aSize, errdefs.ErrInvalidArgument)
	}
	if size <= defaultShmSize {
		return size, nil
	}
	bounds, err := r.memoryLimits(cgroupPath)
	if err != nil {
		return 0, err
	}
	for _, b := range append([]shmBound{most}, bounds...) {
		if size > b.size {
			return 0, fmt.Errorf("annotation %s %q: must be at most %d bytes, which is %s: %w", ShmSizeAnnotation, value, b.size, b.what, errdefs.ErrInvalidArgument)
		}
	}
	return size, nil
}

// shmBound is what a /dev/shm must not exceed, and what that is.
type shmBound struct {
	size uint64
	what string
}

// maxShmSize is the bound for all pods of the machine.
func (r Request) maxShmSize() (shmBound, error) {
	if r.MaxShmSize != "" {
		size, ok := parseSize(r.MaxShmSize)
		if !ok {
			return shmBound{}, fmt.Errorf("runtime options: MaxShmSize %q: must be %s: %w", r.MaxShmSize, aSize, errdefs.ErrInvalidArgument)
		}
		return shmBound{size, "the runtime option MaxShmSize"}, nil
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return shmBound{}, os.NewSyscallError("sysinfo", err)
	}
	// That of a tmpfs without a size (Documentation/filesystems/tmpfs.rst).
	return shmBound{info.Totalram * uint64(info.Unit) / 2, "half of the machine's memory; the runtime option MaxShmSize sets another bound"}, nil
}

// memoryLimits are the pod's own bounds.
func (r Request) memoryLimits(cgroupPath string) ([]shmBound, error) {
	var bounds []shmBound
	if limits := r.Config.Resources; limits != nil && limits.MemoryLimit > 0 {
		bounds = append(bounds, shmBound{uint64(limits.MemoryLimit), "the memory limit of the pod's containers"})
	}
	if cgroupPath == "" {
		return bounds, nil
	}
	group, err := hierarchy.At(cgroupPath)
	if err != nil {
		return nil, err
	}
	limit, err := group.MemoryLimit()
	if err != nil {
		return nil, fmt.Errorf("memory limit of cgroup_parent %q: %w", r.Config.CgroupParent, err)
	}
	return append(bounds, shmBound{limit, fmt.Sprintf("the memory limit of cgroup_parent %q", r.Config.CgroupParent)}), nil
}

// aSize is what parseSize takes, for messages.
const aSize = "a size in bytes such as 67108864 or 64Mi, at least 1"

func parseSize(text string) (uint64, bool) {
	number, factor := text, uint64(1)
	for _, q := range quantities {
		if n, ok := strings.CutSuffix(text, q.suffix); ok {
			number, factor = n, q.factor
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	// Of size 0 a tmpfs has no limit.
	if err != nil || n == 0 || n > math.MaxInt64/factor {
		return 0, false
	}
	return n * factor, true
}

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

// shmSize is the size of the pod's /dev/shm. What a container writes there is charged to its cgroup, and so bounded.
// But a size beyond the memory promises what is not there, and in a cgroup without a limit it is all of the machine's.
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
		return 0, fmt.Errorf("annotation %s %q: must be %s: %w",
			ShmSizeAnnotation, value, sizeForm, errdefs.ErrInvalidArgument)
	}
	if size <= defaultShmSize {
		return size, nil
	}
	limits, err := r.memoryLimits(cgroupPath)
	if err != nil {
		return 0, err
	}
	for _, limit := range append([]shmLimit{most}, limits...) {
		if size > limit.size {
			return 0, fmt.Errorf("annotation %s %q: must be at most %d bytes, which is %s: %w",
				ShmSizeAnnotation, value, limit.size, limit.name, errdefs.ErrInvalidArgument)
		}
	}
	return size, nil
}

// shmLimit is a size that a /dev/shm must not exceed.
type shmLimit struct {
	size uint64
	name string // for the error
}

// maxShmSize is the limit for all pods of the machine.
func (r Request) maxShmSize() (shmLimit, error) {
	if r.MaxShmSize != "" {
		size, ok := parseSize(r.MaxShmSize)
		if !ok {
			return shmLimit{}, fmt.Errorf("runtime options: MaxShmSize %q: must be %s: %w",
				r.MaxShmSize, sizeForm, errdefs.ErrInvalidArgument)
		}
		return shmLimit{size, "the runtime option MaxShmSize"}, nil
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return shmLimit{}, os.NewSyscallError("sysinfo", err)
	}
	// That of a tmpfs without a size (Documentation/filesystems/tmpfs.rst).
	half := info.Totalram * uint64(info.Unit) / 2
	return shmLimit{half, "half of the machine's memory; the runtime option MaxShmSize sets another bound"}, nil
}

// memoryLimits are the pod's own limits.
func (r Request) memoryLimits(cgroupPath string) ([]shmLimit, error) {
	var limits []shmLimit
	if res := r.Config.Resources; res != nil && res.MemoryLimit > 0 {
		limits = append(limits, shmLimit{uint64(res.MemoryLimit), "the memory limit of the pod's containers"})
	}
	if cgroupPath == "" {
		return limits, nil
	}
	group, err := hierarchy.At(cgroupPath)
	if err != nil {
		return nil, err
	}
	size, err := group.MemoryLimit()
	if err != nil {
		return nil, fmt.Errorf("memory limit of cgroup_parent %q: %w", r.Config.CgroupParent, err)
	}
	return append(limits, shmLimit{size, fmt.Sprintf("the memory limit of cgroup_parent %q", r.Config.CgroupParent)}), nil
}

// sizeForm is what parseSize takes.
const sizeForm = "a size in bytes such as 67108864 or 64Mi, at least 1"

// parseSize reads a quantity of Kubernetes (pkg/api/resource) that is a whole number of bytes.
func parseSize(text string) (bytes uint64, ok bool) {
	digits := strings.TrimRight(text, "KMGTki")
	factor, ok := map[string]uint64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 64)
	// A tmpfs of size 0 has no limit.
	if !ok || err != nil || n == 0 || n > math.MaxInt64/factor {
		return 0, false
	}
	return n * factor, true
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
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

func shmSize(annotations map[string]string) (uint64, error) {
	value, ok := annotations[ShmSizeAnnotation]
	if !ok {
		return defaultShmSize, nil
	}
	number, factor := value, uint64(1)
	for _, q := range quantities {
		if n, ok := strings.CutSuffix(value, q.suffix); ok {
			number, factor = n, q.factor
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	// Of size 0 a tmpfs has no limit.
	if err != nil || n == 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("annotation %s %q: must be a size in bytes such as 67108864 or 64Mi, at least 1: %w", ShmSizeAnnotation, value, errdefs.ErrInvalidArgument)
	}
	return n * factor, nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"slices"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// foldersV2 lists what is read of a cgroup at dir.
func foldersV2(dir string) []folder[*v2.Metrics] {
	sources := slices.Concat(
		[]source[*v2.Metrics]{unchanged("cgroup.controllers"), unchanged("cgroup.pressure")},
		pidsV2(), cpuV2(), memoryV2(), rdmaV2(), ioV2(),
	)
	for _, size := range hugePages(dir, "current") {
		sources = append(sources, hugetlbV2(size)...)
	}
	return []folder[*v2.Metrics]{{dir, sources}}
}

// unchanged is a file that says which others there are: when it does not say the same as at first, they are opened again.
func unchanged(name string) source[*v2.Metrics] {
	var first []byte
	return source[*v2.Metrics]{name: name, parse: func(text []byte, _ *v2.Metrics) error {
		switch {
		case first == nil:
			first = append([]byte{}, text...)
		case !bytes.Equal(first, text):
			return errStale
		}
		return nil
	}}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"path"
	"strings"
)

// parentOf is the parent in an OCI cgroupsPath: the slice of slice:prefix:name, or the directory of a path.
func parentOf(cgroupsPath string) string {
	if slice, rest, ok := strings.Cut(cgroupsPath, ":"); ok && strings.Count(rest, ":") == 1 && !strings.Contains(cgroupsPath, "/") {
		return slice
	}
	if cgroupsPath == "" {
		return ""
	}
	return path.Dir(cgroupsPath)
}

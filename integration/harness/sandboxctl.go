// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Sandboxctl returns the operator's tool: the binary that SANDBOXCTL_BINARY names, or one that is built from the tree
// into dir. It is for tests of packages that are two directories below the root.
func Sandboxctl(dir string) (string, error) {
	if binary := os.Getenv("SANDBOXCTL_BINARY"); binary != "" {
		return binary, nil
	}
	binary := filepath.Join(dir, "sandboxctl")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../cmd/sandboxctl"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return binary, nil
}

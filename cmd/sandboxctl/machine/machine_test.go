// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestRoot_Resolve(t *testing.T) {
	root := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(root, "run/containerd"), 0o755), os.Mkdir(filepath.Join(root, "var"), 0o755),
		os.Symlink("../run", filepath.Join(root, "var/run")), os.Symlink("../../..", filepath.Join(root, "var/out")),
	)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/run/containerd": "/run/containerd", "/var/run/containerd": "/run/containerd", "/none": "/none", "/var/run/none": "/var/run/none",
		"/var/out": "/var/out", // it leads out of the machine
	} {
		if got := Root(root).Resolve(path); got != want {
			t.Errorf("Resolve(%q) = %q, want %q", path, got, want)
		}
	}
}

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

func TestFlagValue(t *testing.T) {
	for _, args := range [][]string{{"x", "-id", "c"}, {"x", "--id", "c"}, {"x", "-id=c"}, {"x", "--id=c"}} {
		if got := FlagValue(args, "id"); got != "c" {
			t.Errorf("FlagValue(%q) = %q, want c", args, got)
		}
	}
	for _, args := range [][]string{nil, {"x", "id", "c"}, {"x", "-id"}, {"x", "-idd", "c"}} {
		if got := FlagValue(args, "id"); got != "" {
			t.Errorf("FlagValue(%q) = %q, want nothing", args, got)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		dir, path string
		want      bool
	}{
		{"/a", "/a", true}, {"/a", "/a/b", true}, {"/a", "/ab", false}, {"/a", "/a/../b", false}, {"/a", "/", false}, {"/a", "/a/..b", true},
	} {
		if got := Within(tt.dir, tt.path); got != tt.want {
			t.Errorf("Within(%q, %q) = %t, want %t", tt.dir, tt.path, got, tt.want)
		}
	}
}

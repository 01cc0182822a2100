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

func TestOutdated_IsAProgramThatWasReplaced(t *testing.T) {
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	program, other := path("bin/shim"), path("other")
	const deleted = " (deleted)"
	// The link of a process leads to its program, whatever the path says that is read from it.
	process := func(pid, exe string) {
		must(os.MkdirAll(path("proc/"+pid), 0o755), os.Symlink("/", path("proc/"+pid+"/root")), os.Symlink(exe, path("proc/"+pid+"/exe")))
	}
	must(os.Mkdir(path("bin"), 0o755))
	for _, file := range []string{program, program + deleted, other + deleted} {
		must(os.WriteFile(file, nil, 0o755))
	}
	process("1", program)
	process("2", program+deleted)
	process("3", other+deleted)
	for pid, want := range map[int]bool{1: false, 2: true, 3: false, 4: false} {
		if got := Root(root).Outdated(pid); got != want {
			t.Errorf("Outdated(%d) = %t, want %t", pid, got, want)
		}
	}
}

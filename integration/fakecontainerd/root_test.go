// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// A distribution may have another C library, or none of the shim's age: the binary needs nothing of its root.
func TestBinary_NeedsNothingOfItsRoot(t *testing.T) {
	harness.OursOnly(t, "is one file")
	file, err := elf.Open(env.Shim)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // opened for reading only
	if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) != 0 {
		t.Skipf("SKIPPED: needs the binary of make build, this one has %q, %v", libraries, err)
	}
	root := t.TempDir()
	text, err := os.ReadFile(env.Shim)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "shim"), text, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, arg := range []string{"-v", "-info"} {
		cmd := exec.Command("/shim", arg)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
		if out, err := cmd.Output(); err != nil || len(out) == 0 {
			t.Errorf("%s in an empty root: %q, %v, want an answer", arg, out, err)
		}
	}
}

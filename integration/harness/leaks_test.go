// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// If the check missed a kind of leak, no test could fail because of it.
func TestLeaks_EveryKindIsFoundAndRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root: sudo make integration")
	}
	dir, err := os.MkdirTemp("", NamespacePrefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := Scope{Namespace: filepath.Base(dir), Dirs: []string{filepath.Join(dir, "bundles")}, MountsIn: dir}
	if leaks := s.Leaks(); len(leaks) != 0 {
		t.Fatalf("Leaks of nothing = %q", leaks)
	}
	roots, err := CgroupRoots()
	if err != nil || len(roots) == 0 {
		t.Fatalf("CgroupRoots = %q, %v", roots, err)
	}
	group := filepath.Join(roots[len(roots)-1], s.Namespace, "c")
	for _, d := range []string{
		group, filepath.Join(s.Dirs[0], "c"), filepath.Join(dir, "mnt"),
		filepath.Join(StateRoot(s.Namespace), "c"),
	} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("none", filepath.Join(dir, "mnt"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	shim := exec.Command("/bin/sh", "-c", "read line", "-namespace", s.Namespace)
	if _, err := shim.StdinPipe(); err != nil { // what read waits for
		t.Fatal(err)
	}
	ended, err := Spawn(shim)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { <-ended }) // Remove kills it
	Eventually(t, "every leak is named", func() error {
		text := strings.Join(s.Leaks(), "\n")
		for _, want := range []string{
			"process ", "mount " + dir + "/mnt", "cgroup " + group,
			"file " + s.Dirs[0] + "/c", "file " + StateRoot(s.Namespace) + "/c",
		} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("want %s in:\n%s", want, text)
			}
		}
		return nil
	})
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "nothing is left", func() error {
		if leaks := s.Leaks(); len(leaks) != 0 {
			return errors.New(strings.Join(leaks, "\n"))
		}
		return nil
	})
}

func TestLeaks_ScopeOfNoTestIsRefused(t *testing.T) {
	for _, s := range []Scope{
		{},
		{Namespace: "default", MountsIn: "/tmp/shim-test-1"},
		{Namespace: "shim-test-", MountsIn: "/tmp/shim-test-1"},
		{Namespace: "shim-test-1", MountsIn: "/"},
		{Namespace: "shim-test-1", MountsIn: "/tmp/shim-test-1", Dirs: []string{"/run"}},
	} {
		if err := s.Remove(); err == nil {
			t.Errorf("Remove of %+v = nil, want an error", s)
		}
	}
}

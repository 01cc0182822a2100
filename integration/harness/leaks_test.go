// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	started, ended := make(chan error, 1), make(chan struct{})
	go run(shim, started, ended)
	if err := <-started; err != nil {
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
				return &missing{want, text}
			}
		}
		return nil
	})
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := poll(time.Second, func() error {
		if leaks := s.Leaks(); len(leaks) != 0 {
			return &missing{"nothing", strings.Join(leaks, "\n")}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

type missing struct{ want, text string }

func (m *missing) Error() string { return "want " + m.want + " in:\n" + m.text }

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

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

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

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

// A hardened node may give containerd a strict umask. What is made for a container is for its users all the same.
func TestStart_ByAStrictUmaskLocksNoUserOut(t *testing.T) {
	harness.OursOnly(t, "does not take containerd's umask over")
	for name, personality := range map[string]*specs.LinuxPersonality{
		"by the launcher": nil, "by libcontainer": {Domain: specs.PerLinux},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", func(s *specs.Spec) {
				s.Linux.Personality, s.Process.User.UID, s.Process.Cwd = personality, 1000, "/data/made/cwd"
				for _, dir := range []string{"/data", "/data/made/mounted"} {
					s.Mounts = append(s.Mounts, specs.Mount{Destination: dir, Type: "tmpfs", Source: "tmpfs"})
				}
			}, "sh", "-c", "cd /data/made/mounted && cd ../cwd && umask && exec sleep 1000")
			old := syscall.Umask(0o077)
			defer syscall.Umask(old)
			s := f.Shim(b)
			syscall.Umask(old)
			s.Run(b)
			s.RunExec("c1", "e1", "sh", "-c", "cd /data/made/mounted && cd ../cwd && [ $(umask) = 0022 ]")
			w, err := s.Wait(f.Ctx, &task.WaitRequest{ID: "c1", ExecID: "e1"})
			f.Must(err, "wait for e1")
			if w.GetExitStatus() != 0 {
				t.Errorf("an exec of user 1000 ends with %d, want that it may use what was made", w.GetExitStatus())
			}
			s.KillAndDelete(b)
			s.End()
		})
	}
}

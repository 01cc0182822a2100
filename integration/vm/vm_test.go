// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// vmrun returns the command, to be run with a directory for temporary files of its own, which must be empty in the end.
func vmrun(t *testing.T, arg ...string) *exec.Cmd {
	t.Helper()
	if require := os.Getenv("SHIM_TEST_REQUIRE"); !slices.Contains(strings.Split(require, ","), "vm") {
		t.Skip(`SKIPPED: boots a virtual machine, which takes a while: make smoke-vm does, with "vm" in SHIM_TEST_REQUIRE`)
	}
	program := filepath.Join(t.TempDir(), "vmrun")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/vmrun").CombinedOutput(); err != nil {
		t.Fatalf("build vmrun: %v\n%s", err, out)
	}
	temp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, arg...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	cmd.Stderr = t.Output()
	t.Cleanup(func() {
		if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
			t.Errorf("temporary files: %v, %v, want none", left, err)
		}
		if pids := mentions(t, temp); len(pids) != 0 {
			t.Errorf("processes %v are left", pids)
		}
	})
	return cmd
}

// mentions lists the processes that were given a path below dir.
func mentions(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, name := range files {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(dir+"/")) {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

func TestCommand_FindsAndGivesBack(t *testing.T) {
	const script = `
for dir in /sys/fs/cgroup /run "$TMPDIR" /disk; do stat -fc "$dir %T" "$dir"; done
cat /proc/1/comm
for c in cpuset cpu io memory hugetlb pids; do grep -o "\<$c\>" /sys/fs/cgroup/cgroup.controllers; done | xargs
nproc
pwd
echo kept >"$1/file"
printf '%s|' "$WORD" "$2"
printf 'a\r\n\001' >&2
sleep 1000 & # holds the output open
exit 7`
	const odd = "it's \"a\" $word\\ of\n`this`"
	for _, tt := range []struct {
		name, pid1 string
		flags      []string
	}{
		{name: "without systemd", pid1: "busybox"},
		{name: "with systemd", pid1: "systemd", flags: []string{"-systemd"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			flags := append(tt.flags, "-timeout", "5m", "-cpus", "3", "-rw", dir, "-disk", "64M", "-env", "WORD="+odd)
			cmd := vmrun(t, append(flags, "--", "sh", "-c", script, "sh", dir, odd)...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // how it ended is in its state
			got := cmd.ProcessState.ExitCode()
			wd, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			want := "/sys/fs/cgroup cgroup2fs\n/run tmpfs\n/run/tmp tmpfs\n/disk ext2/ext3\n" + tt.pid1 +
				"\ncpuset cpu io memory hugetlb pids\n3\n" + wd + "\n" + odd + "|" + odd + "|"
			if got != 7 || stdout.String() != want || stderr.String() != "a\r\n\001" {
				t.Errorf("vmrun = %d, %q, %q, want 7, %q, %q", got, &stdout, &stderr, want, "a\r\n\001")
			}
			if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "kept\n" || err != nil {
				t.Errorf("file in the shared directory: %q, %v, want %q", text, err, "kept\n")
			}
		})
	}
}

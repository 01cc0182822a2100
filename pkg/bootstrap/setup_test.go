// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRaiseOOMScore(t *testing.T) {
	for _, tt := range []struct{ parent, want string }{{"-999\n", "-998"}, {"0\n", "1"}, {"1000\n", "1000"}} {
		proc := t.TempDir()
		for name, text := range map[string]string{"7": tt.parent, "self": "unset"} {
			if err := os.Mkdir(filepath.Join(proc, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, name, "oom_score_adj"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := raiseOOMScore(proc, 7); err != nil {
			t.Fatalf("raiseOOMScore above %q = %v", tt.parent, err)
		}
		got, err := os.ReadFile(filepath.Join(proc, "self", "oom_score_adj"))
		if err != nil || !strings.HasPrefix(string(got), tt.want) {
			t.Errorf("above %q the score is %q, %v, want %q", tt.parent, got, err, tt.want)
		}
	}
	if err := raiseOOMScore(t.TempDir(), 7); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("raiseOOMScore of a parent that is gone = %v, want not exist", err)
	}
}

func TestCgroupMounts(t *testing.T) {
	hybrid, err := os.ReadFile("testdata/mountinfo-6.18-hybrid")
	if err != nil {
		t.Fatal(err)
	}
	var unified strings.Builder
	for line := range strings.Lines(string(hybrid)) {
		if !strings.Contains(line, " - cgroup cgroup ") {
			unified.WriteString(line)
		}
	}
	first := ""
	for line := range strings.Lines(string(hybrid)) {
		if strings.Contains(line, " - cgroup cgroup ") {
			first = line
			break
		}
	}
	v1 := []string{}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"} {
		v1 = append(v1, "/sys/fs/cgroup/"+c)
	}
	tests := []struct {
		name, text string
		want       []string
	}{
		{"hybrid means the v1 hierarchies", string(hybrid), v1},
		{"v2 alone", unified.String(), []string{"/sys/fs/cgroup/unified"}},
		{"a bind mount of a hierarchy does not count", string(hybrid) + strings.Replace(first, "/sys/fs/cgroup/", "/mnt/", 1), v1},
		{"escaped blanks", strings.Replace(first, "/sys/fs/cgroup/cpu", `/a\040b`, 1), []string{"/a b"}},
		{"nothing", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := cgroupMounts(file)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("cgroupMounts = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

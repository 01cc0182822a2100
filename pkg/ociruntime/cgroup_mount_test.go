// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// A shim in a mount namespace of its own sees the cgroup file systems as the
// script leaves them; those of the machine are not touched.
func TestCreate_CgroupMountsThatCannotBeUsed(t *testing.T) {
	const each = "while read -r _ dir kind _; do case $kind in cgroup | cgroup2) "
	const end = "; esac; done </proc/self/mounts"
	for _, tc := range []struct {
		name, script string
		want         []string
	}{
		{"read-only", each + "mount -o remount,bind,ro $dir" + end, []string{"/sys/fs/cgroup", "read-only file system"}},
		{"absent", each + "umount -l $dir" + end, []string{"cgroup"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig(t, "sleep", "1000")
			limit := int64(100)
			c.Spec.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
			t.Cleanup(func() { wantNothingLeft(t, c) })
			data, err := json.Marshal(life{Config: c, Stage: "running"})
			must(t, err)
			file := filepath.Join(filepath.Dir(c.Bundle), "life.json")
			must(t, os.WriteFile(file, data, 0o600))
			defer testReaper.Suspend()() // the shim is a child that only we wait for
			cmd := exec.Command("unshare", "--mount", "sh", "-c", tc.script+"; exec "+os.Args[0])
			cmd.Env = append(os.Environ(), shimEnv+"="+file)
			_, err = cmd.Output() // its stdin is empty: it ends also when it could create
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("Create: %v, want it refused", err)
			}
			wantText(t, errors.New(string(exit.Stderr)), tc.want...)
		})
	}
}

// A mount of cgroup v2 from the host's cgroup namespace sets the options of the whole hierarchy.
func TestCgroupMount_FromTheHostsNamespaceKeepsTheOptions(t *testing.T) {
	options := func() string {
		mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
		must(t, err)
		if len(mounts) == 0 {
			return ""
		}
		return mounts[0].VFSOptions
	}
	before := options()
	if !strings.Contains(before, "nsdelegate") {
		lacking(t, "cgroup2", "cgroup v2 with the option nsdelegate")
	}
	for name, r := range runtimes() {
		c := newConfig(t, "cat", "/sys/fs/cgroup/cgroup.procs", "/cgroup2/cgroup.procs")
		without(specs.CgroupNamespace)(&c)
		mount(specs.Mount{Destination: "/cgroup2", Type: "cgroup2", Source: "cgroup2"})(&c)
		if unified() {
			mount(specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
				specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup"})(&c)
		} else {
			c.Spec.Process.Args = []string{"cat", "/cgroup2/cgroup.procs"}
		}
		if status := createBy(t, r, c).start().wait().Status; status != 0 {
			t.Errorf("%s: the container ends with %d", name, status)
		}
		if after := options(); after != before {
			t.Errorf("%s: the options of cgroup v2 were %s, and are %s", name, before, after)
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// Root of a user namespace, as in an unprivileged system container, may have a systemd of its own, which is pid 1 there
// and listens on the system bus. libcontainer would ask that of a user instead.
func TestCgroup_OfARootInAUserNamespace(t *testing.T) {
	const variable = "SHIM_TEST_USER_NAMESPACE"
	if os.Getenv(variable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in a user namespace: %v\n%s", err, out)
		}
		return
	}
	for _, tt := range []struct {
		path              string
		systemd, rootless bool
	}{{"a.slice:b:c1", true, false}, {"/a/c1", false, true}} {
		spec := &specs.Spec{Linux: &specs.Linux{CgroupsPath: tt.path}}
		config := process.Config{ID: "c1", Spec: spec}
		config.SystemdCgroup = tt.systemd
		c, err := Cgroup(config)
		if err != nil {
			t.Fatal(err)
		}
		if c.Rootless != tt.rootless {
			t.Errorf("cgroup %s: rootless is %t, want %t", tt.path, c.Rootless, tt.rootless)
		}
	}
}

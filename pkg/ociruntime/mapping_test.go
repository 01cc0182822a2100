// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// libcontainer reads the mappings by a child, which only it may collect.
func TestCreate_TheReaperLeavesTheReaderOfMappingsAlone(t *testing.T) {
	release := testReaper.Suspend()
	holder := exec.Command("sleep", "1000")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	must(t, holder.Start())
	testReaper.Register(holder.Process.Pid)
	release()
	t.Cleanup(func() {
		_ = holder.Process.Kill() // dead already is as good
		_ = holder.Wait()         // it was killed
		testReaper.Unregister(holder.Process.Pid)
	})

	c := newConfig(t, "true")
	// libcontainer needs no child for a path that it takes for a process's own.
	path := fmt.Sprintf("/proc/./%d/ns/user", holder.Process.Pid)
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	for i := range 50 { // without the hold about every second fails
		config, err := New(testReaper).translate(c)
		if err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
		if got := config.UIDMappings; len(got) != 1 || got[0].HostID != 100000 || got[0].Size != 65536 {
			t.Fatalf("mappings = %v, want those of the namespace", got)
		}
	}
}

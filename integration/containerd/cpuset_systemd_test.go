// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// Systemd writes the CPUs of a unit again when it is reloaded, so the unit has to follow as well as its cgroup.
func TestSystemd_CPUSetSurvivesAReload(t *testing.T) {
	needCPUSet2(t)
	e := newSystemdEnv(t)
	e.allow("cpuset.source")
	source := e.namespace + "-source.slice"
	setCPUs := func(list string) {
		t.Helper()
		if out := systemctl(t, "set-property", "--runtime", source, "AllowedCPUs="+list); out != "" {
			t.Fatalf("systemctl set-property: %s", out)
		}
	}
	systemctl(t, "start", source)
	t.Cleanup(func() {
		systemctl(t, "stop", source)
		systemctl(t, "revert", source)
	})
	setCPUs("0-1")
	annotation := oci.WithAnnotations(map[string]string{
		annotationSource: strings.TrimPrefix(cgroupOf(t, source), "/sys/fs/cgroup"), annotationMems: "true",
	})
	oomGroup := spec(func(s *oci.Spec) { s.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"} })
	c := e.run("c1", config{opts: with(e.scoped("c1"), annotation, oomGroup)}, "sleep", "1000")
	unit := e.scopeOf("c1")
	dir := cgroupOf(t, unit)
	want := func(when, list string) {
		t.Helper()
		harness.Eventually(t, when, func() error {
			if got := control(t, dir, "cpuset.cpus"); got != list {
				return fmt.Errorf("cpuset.cpus is %q, want %q", got, list)
			}
			if got := property(t, unit, "AllowedCPUs"); got != list {
				return fmt.Errorf("AllowedCPUs is %q, want %q", got, list)
			}
			return nil
		})
		wantRunsOn(t, when, c.Task.Pid(), list)
		// A reload does not keep this one before systemd 253.
		if got := control(t, dir, "memory.oom.group"); got != "1" {
			t.Errorf("%s: memory.oom.group = %q, want 1", when, got)
		}
		writeControl(t, dir, "memory.oom.group", "0")
		e.wantReloaded(dir)
		writeControl(t, dir, "memory.oom.group", "1")
	}
	want("at first", "0-1")
	wantProperty(t, unit, "AllowedMemoryNodes", "0")
	setCPUs("2")
	want("the source changed", "2")
	setCPUs("1-3")
	want("the source changed again", "1-3")
	e.must(c.Update(e.ctx, cpus("3")), "update")
	setCPUs("0-1")
	want("pinned", "3")
	c.kill()
	wantNoUnit(t, unit, dir)
	e.wantQuiet()
}

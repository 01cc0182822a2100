// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

const (
	annotationSource = "io.containerd.sandbox.v1/cpuset.source"
	annotationMems   = "io.containerd.sandbox.v1/cpuset.mems"
)

// needCPUSet2 skips a test of cpusets where they are not those of cgroup v2 or the CPUs are not 0-3.
func needCPUSet2(t *testing.T) {
	t.Helper()
	harness.OursOnly(t, "a cpuset that follows another")
	if !unified() || !slices.Contains(strings.Fields(control(t, "/sys/fs/cgroup", "cgroup.controllers")), "cpuset") {
		lacking(t, "cpuset2", "cgroup v2 with the cpuset controller (make test-v2)")
	}
	if got := control(t, "/sys/devices/system/cpu", "online"); got != "0-3" {
		lacking(t, "cpuset2", "the CPUs 0-3, not "+got)
	}
}

// newCPUSetEnv is newEnv for such a test.
func newCPUSetEnv(t *testing.T) *env {
	t.Helper()
	needCPUSet2(t)
	e := newEnv(t)
	e.allow("cpuset.source")
	top := filepath.Join("/sys/fs/cgroup", e.namespace)
	e.must(os.Mkdir(top, 0o755), "make a cgroup") // env.finish removes it
	for _, dir := range []string{"/sys/fs/cgroup", top} {
		writeControl(t, dir, "cgroup.subtree_control", "+cpuset")
	}
	return e
}

// source makes a cgroup of some CPUs, which ends with the test.
func (e *env) source(name, cpus string) source {
	e.Helper()
	s := source{e, e.makeCgroup(name)}
	s.set(cpus)
	return s
}

// source is a cgroup that containers follow.
type source struct {
	e   *env
	dir string
}

func (s source) set(cpus string) {
	s.e.Helper()
	writeControl(s.e, s.dir, "cpuset.cpus", cpus)
}

// annotation lets a container follow s.
func (s source) annotation() oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{annotationSource: strings.TrimPrefix(s.dir, "/sys/fs/cgroup")})
}

// grouped puts a container into a shim with others.
func grouped(name string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": name})
}

// cgroup is the directory of a container's cgroup.
func (t *task) cgroup() string {
	t.e.Helper()
	spec, err := t.container.Spec(t.e.ctx)
	t.e.must(err, "spec")
	return filepath.Join("/sys/fs/cgroup", spec.Linux.CgroupsPath)
}

// showAffinity prints the CPUs that it may run on.
var showAffinity = []string{"grep", "Cpus_allowed_list", "/proc/self/status"}

// wantAffinity compares what showAffinity printed.
func (p *process) wantAffinity(want string) {
	p.e.Helper()
	if got := strings.TrimSpace(strings.TrimPrefix(p.out.String(), "Cpus_allowed_list:")); got != want {
		p.e.Errorf("%s may run on %q, want %q", p.ID(), got, want)
	}
}

// wantRunsOn waits until a process may run on some CPUs and no others.
func wantRunsOn(tb testing.TB, when string, pid uint32, want string) {
	tb.Helper()
	harness.Eventually(tb, fmt.Sprintf("%s: process %d runs on %s", when, pid, want), func() error {
		text := control(tb, fmt.Sprintf("/proc/%d", pid), "status")
		_, list, _ := strings.Cut(text, "\nCpus_allowed_list:")
		if list, _, _ = strings.Cut(list, "\n"); strings.TrimSpace(list) != want {
			return fmt.Errorf("it runs on %s", strings.TrimSpace(list))
		}
		return nil
	})
}

// wantCPUs waits until a container's cgroup has a list.
func (t *task) wantCPUs(when, want string) {
	t.e.Helper()
	harness.Eventually(t.e, when+": cpuset.cpus is "+want, func() error {
		if got := control(t.e, t.cgroup(), "cpuset.cpus"); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// wantLog waits until a text is in the log of containerd and the shims.
func (e *env) wantLog(text string) {
	e.Helper()
	harness.Eventually(e, fmt.Sprintf("%q in the log", text), func() error {
		if log := e.containerd.LogFrom(e.logStart); !strings.Contains(log, text) {
			return fmt.Errorf("the log is %d bytes of other text", len(log))
		}
		return nil
	})
}

// wantQuiet checks that no shim complained.
func (e *env) wantQuiet() {
	e.Helper()
	for line := range strings.Lines(e.containerd.LogFrom(e.logStart)) {
		if strings.Contains(line, "cpuset") &&
			(strings.Contains(line, "level=warning") || strings.Contains(line, "level=error")) {
			e.Errorf("the log says %s", line)
		}
	}
}

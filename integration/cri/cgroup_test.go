// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// unified reports whether cgroup v2 is the only one.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// booted reports whether systemd is pid 1 (sd_booted(3)).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// cgroups lists the directories of a cgroup that are there, in all hierarchies.
func (e *env) cgroups(path string) []string {
	e.Helper()
	roots, err := harness.CgroupRoots()
	e.must(err, "hierarchies")
	var dirs []string
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			dirs = append(dirs, filepath.Join(root, path))
		}
	}
	return dirs
}

// Not every client of CRI makes it, as a kubelet does.
func TestCgroupParent_ThatIsAbsentIsMadeAndGoesWithThePod(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(e *env, p *pod, containers []*container)
	}{
		{"removed", func(_ *env, p *pod, _ []*container) { p.remove() }},
		{"shim killed", func(e *env, p *pod, containers []*container) {
			e.must(unix.Kill(e.shim(p), unix.SIGKILL), "kill the shim")
			p.wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
			e.wantExited(containers...) // before that containerd does not remove them
			p.remove()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, func(e *env) {
				above := e.cgroup + "/absent"
				parent := above + "/parent"
				p := e.pod("p", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent = parent }))
				roots, err := harness.CgroupRoots()
				e.must(err, "hierarchies")
				if got := e.cgroups(parent); len(got) != len(roots) {
					e.Errorf("the parent = %q, want one in each of %q", got, roots)
				}
				var containers []*container
				for _, name := range []string{"a", "b"} {
					c := p.run(name, forever,
						limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 64 << 20 }))
					if left := harness.InCgroup(parent + "/" + c.id); len(left) == 0 {
						e.Error("no process in the container's cgroup below the parent")
					}
					if got, err := harness.CgroupFile(parent+"/"+c.id, "memory.limit_in_bytes",
						"memory.max"); err != nil || got != fmt.Sprint(64<<20) {
						e.Errorf("memory limit = %s, %v, want 64 MiB", got, err)
					}
					containers = append(containers, c)
				}
				tt.end(e, p, containers)
				if e.way == cri.PodSandbox { // what a pause container's start made nobody removes
					for _, dir := range append(e.cgroups(parent), e.cgroups(above)...) {
						e.must(os.Remove(dir), "remove the parent")
					}
				}
				if left := append(e.cgroups(parent), e.cgroups(above)...); len(left) > 0 {
					e.Errorf("left: %q", left)
				}
				if len(e.cgroups(e.cgroup)) != len(roots) {
					e.Error("what was there before is gone")
				}
			})
		})
	}
}

func TestCgroupParent_SliceWithoutSystemdIsRefused(t *testing.T) {
	harness.OursOnly(t, "the systemd driver for a path of its form, with no option that says so")
	if booted() {
		t.Skip("CANNOT RUN HERE: this is about a machine without systemd")
	}
	eachWay(t, func(e *env) {
		_, err := e.tryPod("p",
			linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent = "/kubepods.slice" }))
		want := "systemd"
		if e.way == cri.Shim {
			want = "kubepods.slice" // which is not found before anybody is asked to make something in it
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			e.Errorf("pod = %v, want an error with %q", err, want)
		}
		e.wantNothingLeft()
		e.wantPodWorks()
	})
}

func TestCgroupParent_PodInASlice(t *testing.T) {
	if !booted() {
		harness.Lacking(t, "systemd", "systemd as pid 1 (make test-systemd)")
	}
	eachWay(t, func(e *env) {
		slice := strings.TrimPrefix(e.cgroup, "/") + ".slice"
		e.Cleanup(func() {
			if out, err := exec.Command("systemctl", "stop", slice).CombinedOutput(); err != nil {
				e.Errorf("stop the slice: %v: %s", err, out)
			}
		})
		p := e.pod("p", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent = "/" + slice }))
		c := p.run("c", forever,
			limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 64 << 20 }))
		scope := "cri-containerd-" + c.id + ".scope"
		limit := "MemoryMax"
		if !unified() {
			limit = "MemoryLimit"
		}
		out, err := exec.Command("systemctl", "show", "-p", limit, "-p", "Slice", scope).CombinedOutput()
		if text := string(out); err != nil || !strings.Contains(text, fmt.Sprintf("%s=%d", limit, 64<<20)) ||
			!strings.Contains(text, "Slice="+slice) {
			e.Errorf("%s: %v: %s, want the limit and the slice", scope, err, text)
		}
		c.wantExec("well", "echo", "well")
		c.end()
		p.remove()
	})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// unified tells whether cgroup v2 is the only one.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// booted tells whether systemd is pid 1 (sd_booted(3)).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

func TestACgroupParentThatIsAbsent(t *testing.T) {
	eachWay(t, func(e *env) {
		parent := e.cgroup + "/absent"
		p, err := e.tryPod("p", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent = parent }))
		if e.way == cri.Shim { // whose pod has nothing else that could make it
			if status.Code(errors.Unwrap(err)) != codes.NotFound || !strings.Contains(err.Error(), parent) {
				e.Errorf("pod = %v, want an error that names the parent and says that it is not found", err)
			}
			e.wantNothingLeft()
			e.wantPodWorks()
			return
		}
		e.must(err, "pod")
		c := p.run("c", forever)
		if left := harness.InCgroup(parent + "/" + c.id); len(left) == 0 {
			e.Error("no process in the container's cgroup below the parent")
		}
		p.remove()
		roots, err := harness.CgroupRoots()
		e.must(err, "hierarchies")
		for _, root := range roots { // a kubelet does this
			if err := os.Remove(filepath.Join(root, parent)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				e.Errorf("remove the parent: %v", err)
			}
		}
	})
}

func TestASliceWhereSystemdIsNotIsRefused(t *testing.T) {
	harness.OursOnly(t, "the systemd driver for a path of its form, with no option that says so")
	if booted() {
		t.Skip("CANNOT RUN HERE: this is about a machine without systemd")
	}
	eachWay(t, func(e *env) {
		_, err := e.tryPod("p", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent = "/kubepods.slice" }))
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

func TestAPodInASlice(t *testing.T) {
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
		c := p.run("c", forever, limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 64 << 20 }))
		scope := "cri-containerd-" + c.id + ".scope"
		out, err := exec.Command("systemctl", "show", "-p", "MemoryMax", "-p", "Slice", scope).CombinedOutput()
		if text := string(out); err != nil || !strings.Contains(text, fmt.Sprintf("MemoryMax=%d", 64<<20)) || !strings.Contains(text, "Slice="+slice) {
			e.Errorf("%s: %v: %s, want the limit and the slice", scope, err, text)
		}
		c.wantExec("well", "echo", "well")
		c.end()
		p.remove()
	})
}

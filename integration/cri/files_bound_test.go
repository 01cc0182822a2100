// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
)

// smallState gives a containerd that does not run yet a state directory of 32 MiB in memory, as it is in /run of a
// node.
func smallState(t *testing.T, d *cri.Daemon) {
	t.Helper()
	if err := os.MkdirAll(d.State, 0o711); err != nil {
		t.Fatal(err)
	}
	// d.Close unmounts it.
	if err := unix.Mount("tmpfs", d.State, "tmpfs", 0, "mode=0711,size=32m"); err != nil {
		t.Fatal(err)
	}
}

// powerless is a container as the restricted profile of Kubernetes has it, but for its user: the files are root's.
var powerless = security(func(s *runtimeapi.LinuxContainerSecurityContext) {
	s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
	s.NoNewPrivs = true
})

// CRI hands a shim that is the sandbox all annotations of the pod, also those that the handler does not let through.
func TestShmSize_IsNotMoreThanThereIs(t *testing.T) {
	const annotation = "io.containerd.sandbox.v1/shm-size"
	eachWay(t, func(e *env) {
		if e.way == cri.PodSandbox {
			e.Skip("containerd's own /dev/shm has one size")
		}
		asking := func(size string) func(*runtimeapi.PodSandboxConfig) {
			return func(c *runtimeapi.PodSandboxConfig) { c.Annotations = map[string]string{annotation: size} }
		}
		limited := func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}
		}
		refused := func(want string, change ...func(*runtimeapi.PodSandboxConfig)) {
			e.Helper()
			if _, err := e.tryPod("p", change...); err == nil || !strings.Contains(err.Error(), want) {
				e.Errorf("run pod: %v, want %q in it", err, want)
			}
		}
		refused(`"8Ti": must be at most`, asking("8Ti"))
		refused(`"128Mi": must be at most 100663296 bytes, which is the memory limit`, asking("128Mi"), limited)
		e.handler = cri.ShimLimits
		refused(`"129Mi": must be at most 134217728 bytes, which is the runtime option MaxShmSize`, asking("129Mi"))
		p := e.pod("p", asking("128Mi"))
		p.run("c", forever).wantExec("128.0M", "sh", "-c", "df -h /dev/shm | awk 'END {print $2}'")
		p.remove()
	})
}

func TestPodFiles_DoNotFillTheStateOfContainerd(t *testing.T) {
	for name, change := range map[string][]func(*runtimeapi.PodSandboxConfig){"users of the machine": nil, "users of the pod's own": {ownUsers}} {
		t.Run(name, func(t *testing.T) {
			eachWayPrepared(t, smallState, func(e *env) {
				if e.way == cri.PodSandbox {
					e.Skip("containerd's own files are in its root, on a disk")
				}
				p := e.pod("p", change...)
				c := p.run("c", forever, powerless)
				for _, file := range []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"} {
					r, err := c.tryExec(60, "dd", "if=/dev/zero", "of="+file, "bs=64k", "count=1024")
					e.must(err, "exec")
					if r.GetExitCode() == 0 || !strings.Contains(string(r.GetStderr()), "No space left on device") {
						e.Errorf("64 MiB in %s: exit code %d, %s, want that there is no space", file, r.GetExitCode(),
							r.GetStderr())
					}
				}
				var state unix.Statfs_t
				e.must(unix.Statfs(e.daemon.State, &state), "room in the state directory")
				if free := state.Bavail * uint64(state.Bsize); free < 30<<20 {
					e.Errorf("the state directory has %d bytes left of 32 MiB", free)
				}
				e.wantPodWorks()
				p.remove()
			})
		})
	}
}

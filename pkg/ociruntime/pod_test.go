// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
)

// startPod starts a pod that the test closes.
func startPod(t *testing.T, c pod.Config) *pod.Pod {
	t.Helper()
	if c.Network != pod.ModeNode { // which has the machine's
		c.Hostname = "web-0"
	}
	bundle, err := os.MkdirTemp("", "pod") // short: it is named in mounts
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, os.Remove(bundle)) })
	p, err := pod.Create(t.Context(), pod.Request{ID: "p1", Bundle: bundle, Config: c, Reaper: testReaper}, thread)
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, p.Close()) })
	testx.Must(t, p.Start(t.Context()))
	return p
}

// member is a container of the pod, as containerd's CRI plugin makes one (internal/cri/opts, WithPodNamespaces).
func member(t *testing.T, p *pod.Pod, c pod.Config, script string) process.Config {
	t.Helper()
	config := newConfig(t, "sh", "-c", script)
	testx.Must(t, os.MkdirAll(filepath.Join(config.Rootfs, "etc"), 0o755))
	for _, name := range []string{"hostname", "hosts", "resolv.conf"} {
		testx.Must(t, os.WriteFile(filepath.Join(config.Rootfs, "etc", name), nil, 0o600))
	}
	path := func(name string) string { return fmt.Sprintf("/proc/%d/ns/%s", p.Pid(), name) }
	config.Spec.Linux.Namespaces = []specs.LinuxNamespace{
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: path("net")},
		{Type: specs.IPCNamespace, Path: path("ipc")},
		{Type: specs.UTSNamespace, Path: path("uts")},
	}
	pids := specs.LinuxNamespace{Type: specs.PIDNamespace}
	if c.PID != pod.ModeContainer {
		pids.Path = path("pid")
	}
	config.Spec.Linux.Namespaces = append(config.Spec.Linux.Namespaces, pids)
	if c.User != nil {
		config.Spec.Linux.Namespaces = append(config.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path("user")})
		config.Spec.Linux.UIDMappings, config.Spec.Linux.GIDMappings = c.User.UIDs, c.User.GIDs
		for dir := config.Rootfs; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
			testx.Must(t, os.Chmod(dir, 0o755)) //nolint:gosec // the user of the namespace has to come through
		}
	}
	config.Spec.Mounts = append(config.Spec.Mounts, specs.Mount{
		Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"},
	})
	testx.Must(t, p.Adapt(config.Spec))
	return config
}

func TestPod_ContainersHaveSysctls(t *testing.T) {
	for _, mode := range []pod.Mode{pod.ModeContainer, pod.ModePod} {
		c := pod.Config{PID: mode}
		p := startPod(t, c)
		config := member(t, p, c, "cat /proc/sys/kernel/shmmni")
		config.Spec.Linux.Sysctl = map[string]string{"kernel.shmmni": "77"}
		testx.Must(t, p.Adapt(config.Spec))
		b := create(t, config).start()
		if exit := b.wait(); exit.Status != 0 || b.output() != "77\n" {
			t.Errorf("PID mode %d: status %d, sysctls %q, want 77", mode, exit.Status, b.output())
		}
	}
}

// CAP_SYS_PTRACE is over the first process of a shared PID namespace, which had the devices of the shim's cgroups and
// no filter.
func TestPod_InitThatIsTracedMakesNoSystemCall(t *testing.T) {
	code, err := compiled("inject.c")
	testx.Must(t, err)
	c := pod.Config{PID: pod.ModePod}
	const here = unix.AT_FDCWD
	for name, args := range map[string][]int{
		"nothing new":       {unix.SYS_MUNMAP, 0, 1 << 12}, // the attack as such works
		"openat":            {unix.SYS_OPENAT, here},
		"socket":            {unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM},
		"mmap":              {unix.SYS_MMAP, 0, 1 << 12, unix.PROT_READ, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS},
		"setns":             {unix.SYS_SETNS, 0},
		"getpid":            {unix.SYS_GETPID},
		"clone":             {unix.SYS_CLONE, int(unix.SIGCHLD)},
		"a compatible call": {0x40000000 + unix.SYS_PPOLL},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, c)
			config := member(t, p, c, "exec /bin/inject "+strings.Trim(fmt.Sprint(args), "[]"))
			testx.Must(t, os.WriteFile(filepath.Join(config.Rootfs, "bin/inject"), code, 0o755)) //nolint:gosec // a program is executable
			caps := []string{"CAP_SYS_PTRACE"}
			config.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
			b := create(t, config).start()
			exit := b.wait()
			if name == "nothing new" {
				if got := b.output(); exit.Status != 0 || got != "attached\nresult 0\n" {
					t.Errorf("the tracer ended with %d: %q, want that it can trace", exit.Status, got)
				}
				return
			}
			if got := b.output(); exit.Status != 128+int(unix.SIGKILL) || got != "attached\n" {
				t.Errorf("the tracer ended with %d: %q, want killed with the pod, and no result", exit.Status, got)
			}
			if status, _ := p.Wait(); status != 128+int(unix.SIGSYS) {
				t.Errorf("the pod's init ended with %d, want killed by its filter", status)
			}
		})
	}
}

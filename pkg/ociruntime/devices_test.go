// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// A mount may open a device that the container may not.
func TestCreate_MountsADeviceThatTheContainerMayNotOpen(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Type: "ext4", Source: unmountedDevice(t), Destination: "/mnt"})
	create(t, c).start()
}

// unmountedDevice has an ext4 file system; the kernel opens a device for the first mount of it alone.
func unmountedDevice(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 8<<20))
	run := func(name string, args ...string) (string, error) {
		defer testReaper.Suspend()() // the command is a child that only we wait for
		out, err := exec.Command(name, args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	out, err := run("mkfs.ext4", "-q", image)
	if err == nil {
		out, err = run("losetup", "--find", "--show", image)
	}
	if err != nil {
		lacking(t, "loop", fmt.Sprintf("ext4 on a loop device: %v: %s", err, out))
	}
	t.Cleanup(func() {
		if text, err := run("losetup", "--detach", out); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", out, err, text)
		}
	})
	return out
}

// The host may have a device under another name, with another owner, or not at all. With libcontainer such a container
// is refused, or has the owner of the host.
func TestInit_InAUserNamespaceHasTheDevicesItAsksFor(t *testing.T) {
	const script = "cd /dev && busybox stat -c '%n %a %u %g %t %T' renamed zero net/tun block pipe && " +
		"echo x >renamed && busybox head -c 1 zero | busybox od -An -tx1"
	want := "renamed 660 0 1000 1 3\nzero 600 7 0 1 5\nnet/tun 666 0 0 a c8\nblock 640 0 0 7 63\npipe 666 0 0 0 0\n 00\n"
	for name, enter := range map[string]func(testing.TB, *process.Config){
		"its own":    ownRootfs,
		"of another": func(tb testing.TB, c *process.Config) { tb.Helper(); inUserNamespaceOfAnother(tb, c, 0) },
	} {
		seen, launched := runInit(t, testRuntime, func(c *process.Config) {
			enter(t, c)
			c.Spec.Linux.Devices = []specs.LinuxDevice{
				{Path: "/dev/renamed", Type: "c", Major: 1, Minor: 3, FileMode: new(os.FileMode(0o660)), GID: new(uint32(1000))},
				{Path: "/dev/zero", Type: "c", Major: 1, Minor: 5, FileMode: new(os.FileMode(0o600)), UID: new(uint32(7))},
				{Path: "/dev/net/tun", Type: "c", Major: 10, Minor: 200, UID: new(uint32(70000))}, // which is not mapped
				{Path: "/dev/block", Type: "b", Major: 7, Minor: 99, FileMode: new(os.FileMode(0o640))},
				{Path: "/dev/pipe", Type: "p"},
				{Path: "/dev/ptmx", Type: "c", Major: 5, Minor: 2}, // which is the container's own
			}
			c.Spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}
			c.Spec.Process.Args = []string{"sh", "-c", script}
		})
		if got := strings.Join(seen.Stdout, ""); got != want || !launched {
			t.Errorf("%s: launched: %t, %q, error %q, stderr %q, want %q", name, launched, got, seen.Err, seen.Stderr, want)
		}
	}
}

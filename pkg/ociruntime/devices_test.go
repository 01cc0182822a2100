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

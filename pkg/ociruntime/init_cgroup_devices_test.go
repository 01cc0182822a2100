// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cgroupmode "github.com/containerd/cgroups/v3"
	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestWhoseDeviceRulesComeEarly(t *testing.T) {
	with := func(rules ...*devices.Rule) *cgroups.Cgroup {
		return &cgroups.Cgroup{Resources: &cgroups.Resources{Devices: rules}}
	}
	group := with()
	all, but := devices.Rule{Type: devices.WildcardDevice}, devices.Rule{Type: devices.BlockDevice, Major: 8}
	for _, tc := range []struct {
		name   string
		config configs.Config
		want   bool
	}{
		{"no mount", configs.Config{Cgroups: group}, true},
		{"mounts without a device", configs.Config{Cgroups: group, Mounts: []*configs.Mount{{Device: "bind"}, {Device: "tmpfs"}}}, true},
		{"a disk", configs.Config{Cgroups: group, Mounts: []*configs.Mount{{Device: "proc"}, {Device: "ext4"}}}, false},
		{"nothing but one", configs.Config{Cgroups: with(&all, &devices.Rule{Type: devices.BlockDevice, Major: 8, Allow: true})}, true},
		{"all but one", configs.Config{Cgroups: with(&devices.Rule{Type: devices.WildcardDevice, Allow: true}, &but)}, false},
		{"a user namespace", configs.Config{Cgroups: group, Namespaces: configs.Namespaces{{Type: configs.NEWUSER}}}, false},
		{"no resources", configs.Config{Cgroups: &cgroups.Cgroup{}}, false},
	} {
		if got := canSetDevicesEarly(&tc.config); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// setOn is a cgroup of version 2 that records what is set on it.
type setOn struct {
	movedTo
	skipped []bool
}

func (s *setOn) Set(r *cgroups.Resources) error {
	s.skipped = append(s.skipped, r.SkipDevices)
	return nil
}

func TestDeviceRulesAreSetOnce(t *testing.T) {
	if cgroupmode.Mode() != cgroupmode.Unified {
		lacking(t, "cgroup2", "cgroup v2 alone")
	}
	dir, err := os.MkdirTemp("/sys/fs/cgroup", "shim-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.Remove(dir)) })
	for _, tc := range []struct {
		name  string
		paths map[string]string
		mount string
		early bool
	}{
		{"early", map[string]string{"": dir}, "tmpfs", true},
		{"with a disk", map[string]string{"": dir}, "ext4", false},
		{"early without success", map[string]string{"": filepath.Join(dir, "absent")}, "tmpfs", false},
		{"version 1 beside it", map[string]string{"": dir, "devices": dir}, "tmpfs", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			group := &setOn{movedTo: movedTo{paths: tc.paths}}
			r := &cgroups.Resources{Devices: []*devices.Rule{{Type: devices.CharDevice, Major: 1, Minor: 3, Permissions: "r", Allow: true}}}
			b := &birth{Manager: group, config: &configs.Config{Cgroups: &cgroups.Cgroup{Resources: r}, Mounts: []*configs.Mount{{Device: tc.mount}}}}
			b.setRules()
			must(t, b.Set(r))
			must(t, b.Set(r))
			if want := []bool{tc.early, false}; !slices.Equal(group.skipped, want) || r.SkipDevices {
				t.Errorf("two calls of Set of the manager with SkipDevices %v, want %v; and %v afterwards, want false", group.skipped, want, r.SkipDevices)
			}
		})
	}
}

// A mount may open a device that the container may not.
func TestAMountOfADeniedDevice(t *testing.T) {
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

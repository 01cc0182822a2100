// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// openat2(2) gives up on ".." while there is a rename anywhere on the machine.
func TestInit_WhileSomebodyRenamesFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	must(t, os.WriteFile(a, nil, 0o600))
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() { // ends with stop
		for !stop.Load() {
			if err := os.Rename(a, b); err != nil {
				done <- err
				return
			}
			a, b = b, a
		}
		done <- nil
	}()
	for range 20 {
		seen, launched := runInit(t, testRuntime, func(c *process.Config) {
			run := filepath.Join(c.Rootfs, "var/run")
			must(t, os.Remove(run))
			must(t, os.Symlink("../run", run)) // as in Alpine's image
			for _, destination := range []string{"/var/run/secrets/one", "/var/run/secrets/two", "/var/run/three"} {
				mount(specs.Mount{Destination: destination, Type: "tmpfs", Source: "tmpfs"})(c)
			}
		})
		if !launched || seen.Status != 7 {
			t.Errorf("by the launcher: %t, status %d, error %q, want the probe's status 7 by the launcher",
				launched, seen.Status, seen.Err)
		}
	}
	stop.Store(true)
	must(t, <-done)
}

// libcontainer makes what a link leads to, if it is not there.
func TestInit_WithALinkToNothing(t *testing.T) {
	for _, tc := range []struct {
		name, made string
		change     func(*process.Config)
		launches   bool
	}{
		{"a file to mount on", "/run/systemd/resolve/stub-resolv.conf", func(c *process.Config) {
			must(t, os.Symlink("../run/systemd/resolve/stub-resolv.conf", filepath.Join(c.Rootfs, "etc/resolv.conf")))
			source := filepath.Join(filepath.Dir(c.Bundle), "a-file")
			must(t, os.WriteFile(source, []byte("x"), 0o600))
			m := specs.Mount{Destination: "/etc/resolv.conf", Type: "bind", Source: source, Options: []string{"bind", "ro"}}
			mount(m)(c)
		}, false},
		{"a directory on the way", "/gone/dir/sub", func(c *process.Config) {
			must(t, os.Symlink("/gone/dir", filepath.Join(c.Rootfs, "etc/link")))
			mount(specs.Mount{Destination: "/etc/link/sub", Type: "tmpfs", Source: "tmpfs"})(c)
		}, false},
		{"a device", "/data/target", func(c *process.Config) {
			must(t, os.Symlink("/data/target", filepath.Join(c.Rootfs, "etc/zero")))
			c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: "/etc/zero", Type: "c", Major: 1, Minor: 5}}
		}, false},
		{"a device that is there", "/data/target", func(c *process.Config) {
			must(t, os.WriteFile(filepath.Join(c.Rootfs, "data/target"), nil, 0o600))
			must(t, os.Symlink("/data/target", filepath.Join(c.Rootfs, "etc/zero")))
			c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: "/etc/zero", Type: "c", Major: 1, Minor: 5}}
		}, true},
		{"a device in a user namespace", "/data/target", func(c *process.Config) {
			must(t, os.Symlink("/data/target", filepath.Join(c.Rootfs, "dev/zero")))
			c.Spec.Mounts = c.Spec.Mounts[:1] // no /dev of the container's own
			ownRootfs(t, c)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := wantSameInit(t, tc.change, tc.launches)
			made := func(line string) bool { return strings.HasPrefix(line, tc.made+" ") }
			if got.Status != 7 || !slices.ContainsFunc(got.Rootfs, made) {
				t.Errorf("libcontainer: status %d, error %q, want 7, and %s in %q", got.Status, got.Err, tc.made, got.Rootfs)
			}
		})
	}
}

// In a user namespace a mount keeps the flags that its source has.
func TestInit_InAUserNamespaceWithAVolumeOnAMountWithFlags(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // for the root of the user namespace
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOSYMFOLLOW, "mode=755"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for _, tc := range []struct {
		options           []string
		refused, launches bool
	}{
		{[]string{"rbind"}, false, true},
		{[]string{"rbind", "rprivate", "rw"}, false, true},
		{[]string{"rbind", "rprivate", "ro"}, false, true},
		{[]string{"bind", "noexec"}, false, true},
		{[]string{"bind", "nosuid", "nodev", "nosymfollow"}, false, true},
		{[]string{"bind", "exec", "rro"}, false, true},
		{[]string{"bind", "suid"}, true, false},
		{[]string{"bind", "rw", "dev"}, true, false},
		{[]string{"bind", "noatime"}, true, false},
		{[]string{"bind", "relatime"}, false, false},
		{[]string{"bind", "ro", "norelatime"}, true, false},
	} {
		t.Run(strings.Join(tc.options, ","), func(t *testing.T) {
			got := wantSameInit(t, func(c *process.Config) {
				ownRootfs(t, c)
				mount(specs.Mount{Destination: "/data", Type: "bind", Source: dir, Options: tc.options})(c)
			}, tc.launches)
			if (got.Err != "") != tc.refused {
				t.Errorf("libcontainer: error %q, want one: %t", got.Err, tc.refused)
			}
		})
	}
}

func TestInit_InAUserNamespaceWithAReadOnlyRootOnAMountWithFlags(t *testing.T) {
	got := wantSameInit(t, func(c *process.Config) {
		ownRootfs(t, c)
		must(t, unix.Mount(c.Rootfs, c.Rootfs, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(c.Rootfs, unix.MNT_DETACH)) })
		must(t, unix.Mount("", c.Rootfs, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""))
		c.Spec.Root.Readonly = true
	}, true)
	if got.Status != 7 {
		t.Errorf("libcontainer: status %d, error %q, want 7", got.Status, got.Err)
	}
}

func TestInit_WithADestinationInProcOrOnTheHost(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*process.Config)
		refusal string
		made    string
	}{
		{"procfs in /proc", mount(specs.Mount{Destination: "/proc/sys", Type: "proc", Source: "proc"}), "inside /proc", ""},
		{"path of the root file system", func(c *process.Config) {
			mount(specs.Mount{Destination: filepath.Join(c.Rootfs, "new"), Type: "tmpfs", Source: "tmpfs"})(c)
		}, "", "/new"},
		{"root file system", func(c *process.Config) {
			mount(specs.Mount{Destination: c.Rootfs, Type: "tmpfs", Source: "tmpfs"})(c)
		}, "on the top of rootfs", ""},
		{"device in the root file system", func(c *process.Config) {
			zero := filepath.Join(c.Rootfs, "etc/zero")
			c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: zero, Type: "c", Major: 1, Minor: 5}}
		}, "", "/etc/zero"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := wantSameInit(t, tc.change, false)
			if (got.Err != "") != (tc.refusal != "") || !strings.Contains(got.Err, tc.refusal) {
				t.Errorf("libcontainer: error %q, want one with %q", got.Err, tc.refusal)
			}
			made := func(line string) bool { return strings.HasPrefix(line, tc.made+" ") }
			if tc.made != "" && !slices.ContainsFunc(got.Rootfs, made) {
				t.Errorf("libcontainer left %q, want %s", got.Rootfs, tc.made)
			}
		})
	}
}

// libcontainer tries again what the launcher could not do, in the root that the launcher has used.
func TestInit_RefusesAsIfTriedOnce(t *testing.T) {
	withoutDev := func(c *process.Config) {
		asContainerd(t, c)
		c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
		must(t, os.MkdirAll(filepath.Join(c.Rootfs, "dev"), 0o755))
	}
	for name, change := range map[string]func(*process.Config){
		"an invalid /dev/null": func(c *process.Config) {
			withoutDev(c)
			must(t, os.WriteFile(filepath.Join(c.Rootfs, "dev/null"), nil, 0o600))
		},
		"no program, in the /dev of the image": func(c *process.Config) {
			withoutDev(c)
			c.Spec.Process.Args = []string{"nope"}
		},
		"a wrong option": mount(specs.Mount{Destination: "/x/y", Type: "tmpfs", Source: "tmpfs", Options: []string{"foo=bar"}}),
	} {
		t.Run(name, func(t *testing.T) {
			if got := wantSameInit(t, change, false); got.Err == "" {
				t.Error("libcontainer refuses nothing")
			}
		})
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// hostileBundles are root file systems and volumes made by an attacker, each for a published attack on runc.
var hostileBundles = []struct {
	name    string
	change  func(tb testing.TB, c *process.Config, outside string) // outside is a directory of the host
	refused bool
}{
	{"CVE-2021-30465: a mount point is a link out of the root", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		must(tb, os.Symlink(filepath.Join("../../../../../../../../..", outside), filepath.Join(c.Rootfs, "link")))
		mount(specs.Mount{Destination: "/link/new", Type: "tmpfs", Source: "tmpfs"})(c)
	}, false},
	{"CVE-2019-16884: /proc is a link to a volume", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		must(tb, os.Remove(filepath.Join(c.Rootfs, "proc")))
		must(tb, os.Symlink("/data", filepath.Join(c.Rootfs, "proc")))
		c.Spec.Mounts = append([]specs.Mount{{Destination: "/data", Type: "bind", Source: outside, Options: []string{"rbind"}}}, c.Spec.Mounts...)
	}, true},
	{"CVE-2023-27561: what leads to /proc is a link", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		must(tb, os.Symlink("/proc", filepath.Join(c.Rootfs, "evil")))
		mount(specs.Mount{Destination: "/evil/sys", Type: "bind", Source: outside, Options: []string{"rbind"}})(c)
	}, true},
	{"CVE-2025-31133: /dev/null is a link", func(tb testing.TB, c *process.Config, _ string) {
		tb.Helper()
		without := c.Spec.Mounts[:1] // no /dev of the container's own
		c.Spec.Mounts = without
		must(tb, os.Symlink("/proc/sys/kernel/core_pattern", filepath.Join(c.Rootfs, "dev/null")))
		c.Spec.Linux.MaskedPaths = []string{"/proc/kcore"}
	}, true},
	{"CVE-2025-52565: /dev/console is a link", func(tb testing.TB, c *process.Config, _ string) {
		tb.Helper()
		c.Spec.Mounts = []specs.Mount{c.Spec.Mounts[0], {Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}}}
		must(tb, os.Symlink("/proc/sys/kernel/core_pattern", filepath.Join(c.Rootfs, "dev/console")))
		c.Spec.Process.Terminal = true
	}, true},
	{"/dev/null is a link to what lies below a descriptor of the host", func(tb testing.TB, c *process.Config, _ string) {
		tb.Helper()
		c.Spec.Mounts = c.Spec.Mounts[:1]
		c.Spec.Linux.MaskedPaths = []string{"/proc/kcore"}
		for fd := 4; fd < 20; fd++ {
			must(tb, os.Symlink(fmt.Sprintf("/proc/self/fd/%d/dev/null", fd), filepath.Join(c.Rootfs, "dev", strconv.Itoa(fd))))
		}
		must(tb, os.Symlink("4", filepath.Join(c.Rootfs, "dev/null")))
	}, true},
	{"CVE-2024-45310: a file to mount on is below a link", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		must(tb, os.Symlink(outside, filepath.Join(c.Rootfs, "link")))
		mount(specs.Mount{Destination: "/link/file", Type: "bind", Source: "/dev/null", Options: []string{"bind"}})(c)
	}, false},
	{"CVE-2024-21626: the working directory is a descriptor", func(_ testing.TB, c *process.Config, _ string) {
		c.Spec.Process.Cwd = "/proc/self/fd/7"
	}, true},
	{"CVE-2024-21626: a link of the image leads to a descriptor", func(tb testing.TB, c *process.Config, _ string) {
		tb.Helper()
		must(tb, os.Symlink("/proc/self/fd/7", filepath.Join(c.Rootfs, "work")))
		c.Spec.Process.Cwd = "/work"
	}, true},
	{"CVE-2023-28642: /sys is a link to a volume", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		must(tb, os.Symlink("/data", filepath.Join(c.Rootfs, "sys")))
		mount(specs.Mount{Destination: "/data", Type: "bind", Source: outside, Options: []string{"rbind"}},
			specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"})(c)
	}, true},
	{"CVE-2026-41579: /dev is a link out of the root", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		c.Spec.Mounts = c.Spec.Mounts[:1]
		must(tb, os.RemoveAll(filepath.Join(c.Rootfs, "dev")))
		must(tb, os.Symlink(filepath.Join("../../../../../../../../..", outside), filepath.Join(c.Rootfs, "dev")))
	}, false},
	{"CVE-2026-88264: /dev/console is a link to nothing on the host", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		c.Spec.Mounts = []specs.Mount{c.Spec.Mounts[0], {Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}}}
		must(tb, os.Symlink(filepath.Join(outside, "console"), filepath.Join(c.Rootfs, "dev/console")))
		c.Spec.Process.Terminal = true
	}, true},
	{"CVE-2026-88265: /dev/null is a link to a file of the host", func(tb testing.TB, c *process.Config, outside string) {
		tb.Helper()
		c.Spec.Mounts = c.Spec.Mounts[:1]
		must(tb, os.WriteFile(filepath.Join(outside, "file"), []byte("host"), 0o600))
		mount(specs.Mount{Destination: "/data", Type: "bind", Source: outside, Options: []string{"bind"}})(c)
		must(tb, os.Symlink("/data/file", filepath.Join(c.Rootfs, "dev/null")))
		c.Spec.Process.User.UID = 1000
	}, true},
	{"CVE-2021-43784: a path that is longer than its length says", func(_ testing.TB, c *process.Config, _ string) {
		long := "/" + strings.Repeat("a", 1<<16+7)
		c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: long})
	}, true},
}

// onHost lists what is in a directory of the host, with owners, modes and contents.
func onHost(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, e.Name()), &st))
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		list = append(list, fmt.Sprintf("%s %o %d:%d %q %v", e.Name(), st.Mode, st.Uid, st.Gid, text, err))
	}
	return list
}

func TestInit_OfAHostileBundle(t *testing.T) {
	for _, b := range hostileBundles {
		t.Run(b.name, func(t *testing.T) {
			for name, r := range map[string]*Runtime{"launcher": testRuntime, "libcontainer": byLibcontainerOnly()} {
				outside := t.TempDir()
				var before []string
				seen, _ := runInit(t, r, func(c *process.Config) {
					b.change(t, c, outside)
					before = onHost(t, outside)
				})
				if (seen.Err != "") != b.refused {
					t.Errorf("%s: error %q, want one: %t", name, seen.Err, b.refused)
				}
				if after := onHost(t, outside); !slices.Equal(after, before) {
					t.Errorf("%s: outside of the root file system is %q, was %q", name, after, before)
				}
			}
		})
	}
}

// A container exchanges what the mounts of another, which shares the volume, lie on.
func TestInit_WhileATargetIsExchanged(t *testing.T) {
	outside := t.TempDir()
	for range 30 / slowness() {
		var stop atomic.Bool
		done := make(chan struct{})
		seen, _ := runInit(t, testRuntime, func(c *process.Config) {
			dir, link := filepath.Join(c.Rootfs, "dir"), filepath.Join(c.Rootfs, "link")
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.Symlink(outside, link))
			go func() { // ends with stop
				defer close(done)
				for !stop.Load() {
					_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) // both exist
				}
			}()
			for range 20 {
				mount(specs.Mount{Destination: "/dir/a/b", Type: "tmpfs", Source: "evil"})(c)
			}
		})
		stop.Store(true)
		<-done
		left, err := os.ReadDir(outside)
		must(t, err)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		if len(left) > 0 || strings.Contains(string(mounts), outside) {
			t.Fatalf("%v was made outside of the root file system, or mounted there; error %s", left, seen.Err)
		}
	}
}

// A container removes a directory of a volume over which the destination of another's mount leads.
func TestInit_WhileADestinationIsRemoved(t *testing.T) {
	outside := t.TempDir()
	for range 20 / slowness() {
		var stop atomic.Bool
		done := make(chan struct{})
		volume := t.TempDir()
		seen, _ := runInit(t, testRuntime, func(c *process.Config) {
			up := "/volume/a" + strings.Repeat("/.", 400) + strings.Repeat("/..", 20)
			mount(specs.Mount{Destination: "/volume", Type: "bind", Source: volume, Options: []string{"rbind"}},
				specs.Mount{Destination: up + outside + "/made", Type: "bind", Source: "/dev/null", Options: []string{"bind"}})(c)
			go func() { // ends with stop
				defer close(done)
				for !stop.Load() {
					_ = unix.Rmdir(filepath.Join(volume, "a")) // often it is not there
				}
			}()
		})
		stop.Store(true)
		<-done
		left, err := os.ReadDir(outside)
		must(t, err)
		if len(left) > 0 {
			t.Fatalf("%v was made outside of the root file system; error %q", left, seen.Err)
		}
	}
}

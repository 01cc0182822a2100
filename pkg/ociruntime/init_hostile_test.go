// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
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
}

func TestInit_OfAHostileBundle(t *testing.T) {
	for _, b := range hostileBundles {
		t.Run(b.name, func(t *testing.T) {
			for name, r := range map[string]*Runtime{"launcher": testRuntime, "libcontainer": byLibcontainerOnly()} {
				outside := t.TempDir()
				seen, _ := runInit(t, r, func(c *process.Config) { b.change(t, c, outside) })
				if (seen.Err != "") != b.refused {
					t.Errorf("%s: error %q, want one: %t", name, seen.Err, b.refused)
				}
				left, err := os.ReadDir(outside)
				must(t, err)
				if len(left) > 0 {
					t.Errorf("%s: %v was made outside of the root file system", name, left)
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

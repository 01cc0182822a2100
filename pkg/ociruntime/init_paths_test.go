// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

func masked(paths ...string) func(*process.Config) {
	return func(c *process.Config) { c.Spec.Linux.MaskedPaths = paths }
}

func readonly(paths ...string) func(*process.Config) {
	return func(c *process.Config) { c.Spec.Linux.ReadonlyPaths = paths }
}

func withTerminal(c *process.Config) { c.Spec.Process.Terminal = true }

// linked makes a link in the root file system.
func linked(t *testing.T, target, name string) func(*process.Config) {
	t.Helper()
	return func(c *process.Config) { must(t, os.Symlink(target, filepath.Join(c.Rootfs, name))) }
}

// volume binds a directory that has the directory sub.
func volume(t *testing.T, destination string, options ...string) func(*process.Config) {
	t.Helper()
	return func(c *process.Config) {
		source := filepath.Join(filepath.Dir(c.Bundle), "volume")
		must(t, os.MkdirAll(filepath.Join(source, "sub"), 0o755))
		mount(specs.Mount{Destination: destination, Type: "bind", Source: source, Options: append(options, "rbind")})(c)
	}
}

// inPIDNamespaceOfAnother has the container join the PID namespace of a process of the test.
func inPIDNamespaceOfAnother(t *testing.T) func(*process.Config) {
	t.Helper()
	return func(c *process.Config) {
		holder := hold(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID})
		for i, n := range c.Spec.Linux.Namespaces {
			if n.Type == specs.PIDNamespace {
				c.Spec.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/pid", holder)
			}
		}
	}
}

// initCase is a container that the launcher starts, or does not, with all of some changes.
type initCase struct {
	name     string
	launches bool
	changes  []func(*process.Config)
}

func (tc initCase) change(c *process.Config) {
	for _, change := range tc.changes {
		change(c)
	}
}

type changes = []func(*process.Config)

func TestInit_WithReadOnlyAndMaskedPaths(t *testing.T) {
	sysfs := mount(specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"})
	another := inPIDNamespaceOfAnother(t)
	containerd := func(c *process.Config) { asContainerd(t, c) }
	for _, tc := range []initCase{
		{"of init itself", true, changes{
			masked("/proc/self/environ", "/proc/thread-self/children"), readonly("/proc/self/attr", "/proc/mounts"),
		}},
		{"of init itself, a terminal", true, changes{masked("/proc/self/environ"), withTerminal}},
		{"masked procfs", true, changes{masked("/proc", "/proc/kcore", "/etc")}},
		{"read-only procfs", true, changes{readonly("/proc/sys", "/proc", "/proc/irq")}},
		{"sysfs", true, changes{sysfs, readonly("/sys"), masked("/sys/firmware")}},
		{"/dev", true, changes{readonly("/dev", "/dev/null"), masked("/dev/zero", "/dev/null", "/etc")}},
		{"relative and twice", true, changes{
			masked("home", "/home", "./home/"), readonly("etc", "../data", "/etc", "/etc/"),
		}},
		{"through links", true, changes{
			linked(t, "../data", "etc/d"), linked(t, "nope", "etc/n"), readonly("/etc/d", "/etc/n"), masked("/var/run", "/etc/n"),
		}},
		{"in a volume", true, changes{volume(t, "/data", "rshared", "nosuid"), readonly("/data", "/data/sub"), masked("/data/sub")}},
		{"in a volume, recursive", true, changes{volume(t, "/data", "rro"), readonly("/data/sub")}},
		{"that cannot be copied", false, changes{volume(t, "/data", "runbindable"), readonly("/data/sub")}},
		{"below a file", false, changes{masked("/etc/passwd/x")}},
		{"with a zero byte, masked", false, changes{masked("/etc\x00x")}},
		{"with a zero byte, read-only", false, changes{readonly("/etc\x00x")}},
		{"PID namespace of another", true, changes{containerd, another}},
		{"PID namespace of another, its first process", true, changes{another, masked("/proc/1/environ")}},
		{"PID namespace of another, read-only", false, changes{another, readonly("/proc/self/attr")}},
		{"PID namespace of another, masked", false, changes{another, masked("/proc/thread-self/environ")}},
		{"PID namespace of another, a terminal", false, changes{another, masked("/proc/self/environ"), withTerminal}},
		{"PID namespace of another, links of procfs", false, changes{another, masked("/proc/net/tcp"), readonly("/proc/mounts")}},
		{"PID namespace of another, a link in the image", false, changes{
			another, linked(t, "/proc/self", "etc/me"), masked("/etc/me/environ"),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantSameInit(t, tc.change, tc.launches) })
	}
}

// upperRoot is the mount on "/" in which a process is that enters the mount namespace later.
var upperRoot = regexp.MustCompile(`(mountinfo: on=/ \S+ \S+ / r)w,`)

func TestInit_WithAReadOnlyPathThatIsTheRoot(t *testing.T) {
	for _, tc := range []initCase{
		{"alone", true, changes{readonly("/")}},
		{"before others", true, changes{readonly("/", "/etc", "/data")}},
		{"after others", true, changes{readonly("/etc", "/")}},
		{"relative", true, changes{readonly(".")}},
		{"by a link", true, changes{linked(t, "/", "etc/top"), readonly("/etc/top")}},
		{"user namespace", true, changes{func(c *process.Config) { ownRootfs(t, c) }, readonly("/")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, _ := runInit(t, byLibcontainerOnly(), tc.change)
			got, launched := runInit(t, testRuntime, tc.change)
			if !launched {
				t.Error("not by the launcher")
			}
			for i, line := range want.Stdout { // libcontainer makes only the lower one read-only
				want.Stdout[i] = upperRoot.ReplaceAllString(line, "${1}o,")
			}
			wantEqual(t, want, got)
			const refused = `open("/file", O_WRONLY | O_CREAT, 0600): error 30` + "\n"
			if !slices.Contains(got.Stdout, refused) {
				t.Errorf("the probe's output lacks %q", refused)
			}
		})
	}
	c := newConfig(t, "sleep", "1000")
	readonly("/")(&c)
	if got := create(t, c).start().exec(t.Context(), command("sh", "-c", "true >/file")); got.err != nil || got.status == 0 {
		t.Errorf("exec that writes = %d, %v, want it to fail", got.status, got.err)
	}
}

// A tmpfs and /dev become read-only at the end, by their path.
func TestInit_WithAReadOnlyMountThatAnotherCovers(t *testing.T) {
	tmpfs := func(destination string, options ...string) func(*process.Config) {
		return mount(specs.Mount{Destination: destination, Type: "tmpfs", Source: "tmpfs", Options: options})
	}
	dev := func(options ...string) func(*process.Config) {
		return mount(specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev", Options: append(options, "rbind")})
	}
	for _, tc := range []initCase{
		{"volume", true, changes{tmpfs("/data", "ro"), volume(t, "/data")}},
		{"volume with other flags", true, changes{tmpfs("/data", "ro", "noexec", "noatime"), volume(t, "/data", "nosuid")}},
		{"tmpfs", true, changes{tmpfs("/data", "ro"), tmpfs("/data")}},
		{"tmpfs that is read-only", true, changes{tmpfs("/data"), tmpfs("/data", "ro")}},
		{"by a link", true, changes{tmpfs("/run", "ro"), volume(t, "/var/run")}},
		{"below it", true, changes{tmpfs("/data", "ro", "rshared"), volume(t, "/data/child", "rslave")}},
		{"above it", false, changes{tmpfs("/data/sub", "ro"), volume(t, "/data")}},
		{"above it, without its directory", false, changes{tmpfs("/data/x", "ro"), volume(t, "/data")}},
		{"/dev", true, changes{tmpfs("/dev", "ro"), tmpfs("/dev", "mode=755")}},
		{"/dev of the host", true, changes{dev("ro"), tmpfs("/dev", "mode=755")}},
		{"nothing, recursive flags of /dev", true, changes{dev("ro", "rrw")}},
		{"nothing, a path with dots", false, changes{tmpfs("/absent/../y", "ro")}},
		{"nothing, a relative path", true, changes{tmpfs("run", "ro")}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantSameInit(t, tc.change, tc.launches) })
	}
}

// libcontainer ignores recursive flags of cgroups.
func TestInit_WithRecursiveFlagsOfCgroups(t *testing.T) {
	inUsers := func(c *process.Config) { ownRootfs(t, c) }
	for _, options := range [][]string{{"ro", "rrw"}, {"rro"}, {"rnosuid", "rnodev", "rnoatime"}, {"ro", "rslave"}, {"suid", "rw"}} {
		cgroups := mount(specs.Mount{Destination: "/sys", Type: "tmpfs", Source: "tmpfs"},
			specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: options})
		for _, tc := range []initCase{
			{"plain", true, changes{without(specs.CgroupNamespace), cgroups}},
			{"cgroup namespace", true, changes{without(specs.CgroupNamespace), withCgroupNamespace, cgroups}},
			{"user namespace", !unified(), changes{inUsers, without(specs.CgroupNamespace), cgroups}},
		} {
			t.Run(strings.Join(options, ",")+" "+tc.name, func(t *testing.T) { wantSameInit(t, tc.change, tc.launches) })
		}
	}
}

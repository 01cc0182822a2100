// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
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

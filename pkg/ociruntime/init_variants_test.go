// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

func mount(m ...specs.Mount) func(*process.Config) {
	return func(c *process.Config) { c.Spec.Mounts = append(c.Spec.Mounts, m...) }
}

// initBase is a container that variants begin with.
type initBase struct {
	name   string
	change func(testing.TB, *process.Config)
}

var initBases = []initBase{
	{"plain", func(testing.TB, *process.Config) {}},
	{"containerd", asContainerd},
	{"pod", func(tb testing.TB, c *process.Config) {
		tb.Helper()
		asContainerd(tb, c)
		c.Spec.Hostname = ""
		inNamespacesOfAnother(tb, c, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace)
		c.Spec.Process.OOMScoreAdj = new(999)
		if unified() && !controlled("memory") {
			return // as where cgroup v2 is beside v1, which has the controllers
		}
		c.Spec.Linux.Resources.CPU = &specs.LinuxCPU{Shares: new(uint64(256)), Quota: new(int64(20000)), Period: new(uint64(100000))}
		c.Spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(128 << 20))}
	}},
	{"privileged", func(tb testing.TB, c *process.Config) {
		tb.Helper()
		asContainerd(tb, c)
		for i, m := range c.Spec.Mounts {
			c.Spec.Mounts[i].Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "ro" })
		}
		c.Spec.Process.NoNewPrivileges, c.Spec.Linux.MaskedPaths, c.Spec.Linux.ReadonlyPaths = false, nil, nil
		all := ownCapabilities(tb)
		c.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
		c.Spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}},
}

// controlled reports whether containers on cgroup v2 have a controller.
func controlled(controller string) bool {
	list, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // none where there is no such file
	return slices.Contains(strings.Fields(string(list)), controller)
}

// ownCapabilities are those that the test has: root may lack some.
func ownCapabilities(tb testing.TB) []string {
	tb.Helper()
	own, err := capability.NewPid2(0)
	must(tb, err)
	must(tb, own.Load())
	return slices.DeleteFunc(capabilities.KnownCapabilities(), func(name string) bool {
		number := slices.Index(capabilities.KnownCapabilities(), name)
		return !own.Get(capability.PERMITTED, capability.Cap(number))
	})
}

func withCgroupNamespace(c *process.Config) {
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
}

// asContainerd makes c what containerd's default is.
func asContainerd(_ testing.TB, c *process.Config) {
	if unified() {
		withCgroupNamespace(c)
	}
	c.Spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
	}
	c.Spec.Hostname = "box"
	capped(c.Spec.Process)
	c.Spec.Process.NoNewPrivileges = true
	c.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 1024}}
	c.Spec.Linux.MaskedPaths = []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi", "/nope"}
	c.Spec.Linux.ReadonlyPaths = []string{"/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	c.Spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
}

func initVariants(tb testing.TB) []configVariant {
	tb.Helper()
	bind := func(options ...string) func(*process.Config) {
		return func(c *process.Config) {
			source := filepath.Join(filepath.Dir(c.Bundle), "volume")
			must(tb, os.MkdirAll(filepath.Join(source, "sub"), 0o755))
			must(tb, os.WriteFile(filepath.Join(source, "file"), []byte("x"), 0o644)) //nolint:gosec // as volumes are
			mount(specs.Mount{Destination: "/data", Type: "bind", Source: source, Options: append(options, "rbind")},
				specs.Mount{Destination: "/new/dir", Type: "bind", Source: source, Options: append(options, "bind")},
				specs.Mount{Destination: "/new/file", Type: "bind", Source: source + "/file", Options: append(options, "bind")},
				specs.Mount{Destination: "/var/run/secrets/here", Type: "bind", Source: source, Options: append(options, "rbind")})(c)
		}
	}
	tmpfs := func(options ...string) func(*process.Config) {
		return mount(specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: options},
			specs.Mount{Destination: "/home/private", Type: "tmpfs", Source: "tmpfs", Options: options},
			specs.Mount{Destination: "/new", Type: "tmpfs", Source: "other", Options: options})
	}
	propagation := func(p string, options ...string) func(*process.Config) {
		return func(c *process.Config) {
			c.Spec.Linux.RootfsPropagation = p
			bind(options...)(c)
		}
	}
	list := []configVariant{
		{"bind", bind()},
		{"bind read-only", bind("ro")},
		{"bind with flags", bind("nosuid", "nodev", "noexec")},
		{"bind noatime", bind("noatime")},
		{"bind strictatime", bind("strictatime", "nodiratime")},
		{"bind relatime", bind("relatime")},
		{"bind rw", bind("rw", "exec", "dev", "suid")},
		{"bind recursively read-only", bind("rro")},
		{"bind without links", bind("nosymfollow")},
		{"bind private", bind("rprivate")},
		{"bind slave", bind("rslave")},
		{"bind shared", bind("rshared", "ro")},
		{"tmpfs", tmpfs()},
		{"tmpfs with a mode", tmpfs("mode=1755", "size=1m")},
		{"tmpfs read-only", tmpfs("ro", "nosuid", "uid=5", "gid=6")},
		{"tmpfs with inodes", tmpfs("nr_inodes=100", "noexec")},
		{"tmpfs at places with dots", mount(specs.Mount{Destination: "/var/run/../z", Type: "tmpfs", Source: "one"}, specs.Mount{Destination: "/absent/../y/.", Type: "tmpfs", Source: "two"})},
		{"propagation private", propagation("private")},
		{"propagation rprivate", propagation("rprivate", "rshared")},
		{"propagation rslave", propagation("rslave", "rslave")},
		{"propagation shared", func(c *process.Config) {
			propagation("rshared", "rshared")(c)
			c.Spec.Linux.MaskedPaths = nil // of libcontainer's, all but the first are in the peer group of the first
		}},
		{"propagation unbindable", propagation("unbindable")},
		{"read-only root", func(c *process.Config) { c.Spec.Root.Readonly = true }},
		{"names", func(c *process.Config) { c.Spec.Hostname, c.Spec.Domainname = "a-host", "a.domain" }},
		{"sysctls", func(c *process.Config) {
			c.Spec.Linux.Sysctl = map[string]string{
				"net.ipv4.ip_forward": "1", "net.ipv4.ping_group_range": "0 2147483647", "kernel.shm_rmid_forced": "1", "kernel.msgmax": "9000",
			}
		}},
		{"masks", func(c *process.Config) {
			c.Spec.Linux.MaskedPaths = []string{"/proc/kcore", "/etc", "/etc/passwd", "/home/private", "/home/private/", "/data", "/nope", "/var/run"}
		}},
		{"masks below a shared root", func(c *process.Config) {
			c.Spec.Linux.RootfsPropagation = "shared"
			c.Spec.Linux.MaskedPaths = []string{"/nope", "/proc/fs", "/etc", "/data", "/home/private"}
		}},
		{"read-only paths", func(c *process.Config) {
			c.Spec.Linux.ReadonlyPaths = []string{"/proc/sys", "/etc", "/etc/passwd", "/tmp", "/nope", "/nope/nope"}
		}},
		{"devices", func(c *process.Config) {
			c.Spec.Linux.Devices = []specs.LinuxDevice{
				{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, FileMode: new(os.FileMode(0o660)), UID: new(uint32(7)), GID: new(uint32(8))},
				{Path: "/dev/net/tun", Type: "c", Major: 10, Minor: 200},
				{Path: "/dev/block", Type: "b", Major: 7, Minor: 0},
				{Path: "/dev/pipe", Type: "p"},
				{Path: "/etc/zero", Type: "c", Major: 1, Minor: 5, FileMode: new(os.FileMode(0o1644))},
			}
		}},
		{"no /dev", func(c *process.Config) {
			c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
		}},
		{"/dev of the host", func(c *process.Config) {
			c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
			mount(specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}})(c)
		}},
		{"/dev read-only", func(c *process.Config) {
			for i, m := range c.Spec.Mounts {
				if m.Destination == "/dev" {
					c.Spec.Mounts[i].Options = append(m.Options, "ro")
				}
			}
		}},
		{"cgroups", mount(specs.Mount{Destination: "/sys", Type: "tmpfs", Source: "tmpfs"}, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid"}})},
		{"cgroups read-only", mount(specs.Mount{Destination: "/sys", Type: "tmpfs", Source: "tmpfs"}, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}})},
		{"cgroup namespace", func(c *process.Config) {
			without(specs.CgroupNamespace)(c)
			withCgroupNamespace(c)
			mount(specs.Mount{Destination: "/sys", Type: "tmpfs", Source: "tmpfs"}, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}})(c)
		}},
		{"time namespace", timeNamespace},
		{"user namespace, a time namespace", func(c *process.Config) { ownRootfs(tb, c); timeNamespace(c) }},
		{"PIDs of the host", without(specs.PIDNamespace)},
		{"network of the host", without(specs.NetworkNamespace)},
		{"IPC of the host", without(specs.IPCNamespace)},
		{"names of the host", func(c *process.Config) { without(specs.UTSNamespace)(c); c.Spec.Hostname = "" }},
		{"user namespace", func(c *process.Config) { ownRootfs(tb, c) }},
		{"user namespace, volumes", func(c *process.Config) { ownRootfs(tb, c); bind("ro")(c) }},
		{"user namespace, a volume out of reach", func(c *process.Config) {
			ownRootfs(tb, c)
			source := filepath.Join(filepath.Dir(c.Bundle), "private/volume")
			must(tb, os.MkdirAll(source, 0o755))
			must(tb, os.Chmod(filepath.Dir(source), 0o700))
			mount(specs.Mount{Destination: "/new/dir", Type: "bind", Source: source, Options: []string{"rbind", "nosuid"}})(c)
		}},
		{"user namespace, tmpfs", func(c *process.Config) { ownRootfs(tb, c); tmpfs("nosuid")(c) }},
		{"user namespace, mapped volumes", func(c *process.Config) { ownRootfs(tb, c); bind("idmap")(c) }},
		{"user namespace, a terminal", func(c *process.Config) { ownRootfs(tb, c); c.Spec.Process.Terminal = true }},
		{"user namespace, a user", func(c *process.Config) { ownRootfs(tb, c); user(1000)(c.Spec.Process) }},
		{"user namespace, masks", func(c *process.Config) {
			ownRootfs(tb, c)
			c.Spec.Linux.MaskedPaths, c.Spec.Linux.ReadonlyPaths = []string{"/proc/kcore", "/etc"}, []string{"/proc/sys"}
			c.Spec.Root.Readonly = true
		}},
		{"user namespace, sysctls", func(c *process.Config) {
			ownRootfs(tb, c)
			c.Spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1", "kernel.shm_rmid_forced": "1"}
		}},
		{"user namespace of another", func(c *process.Config) { inUserNamespaceOfAnother(tb, c, 0) }},
		{"PID and user namespace of another, sysctls", func(c *process.Config) { sysctlsOfAnother(tb, c) }},
		{"PID and user namespace of another, sysctls, a terminal", func(c *process.Config) {
			sysctlsOfAnother(tb, c)
			c.Spec.Process.Terminal = true
		}},
		{"OOM score", func(c *process.Config) { c.Spec.Process.OOMScoreAdj = new(321) }},
		{"umask", func(c *process.Config) { c.Spec.Process.User.Umask = new(uint32(0o077)) }},
		{"a new directory", func(c *process.Config) { c.Spec.Process.Cwd = "/var/run/a/b" }},
		{"no new keyring", func(c *process.Config) { c.NoNewKeyring = true }},
		{"limits", func(c *process.Config) {
			c.Spec.Linux.Resources = &specs.LinuxResources{
				Pids: &specs.LinuxPids{Limit: new(int64(1))}, Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
				CPU: &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(50000)), Period: new(uint64(100000))},
			}
		}},
		{"seccomp", filtered(tb, nil)},
		{"seccomp that blocks setsid", func(c *process.Config) {
			filtered(tb, deny("setsid", "clone"))(c)
			c.Spec.Process.NoNewPrivileges = true
		}},
		{"annotations", func(c *process.Config) { c.Spec.Annotations = map[string]string{"a": "b"} }},
	}
	for _, options := range mountOptions {
		name := strings.Join(options, ",")
		list = append(list, configVariant{"bind " + name + " on a file", bindFile(tb, options)},
			configVariant{"tmpfs " + name, tmpfs(options...)},
			configVariant{"proc " + name, ofKind("proc", "/proc", options)},
			configVariant{"sysfs " + name, ofKind("sysfs", "/sys", options)})
	}
	for _, v := range variants {
		if v.change != nil {
			list = append(list, configVariant{"process: " + v.name, func(c *process.Config) { v.change(c.Spec.Process) }})
		}
	}
	return list
}

// mountOptions are those that each kind of mount is made with.
var mountOptions = [][]string{
	{"ro"},
	{"nosuid", "noexec"},
	{"nodev", "ro", "noatime"},
	{"nodiratime", "relatime"},
	{"strictatime"},
	{"private"},
	{"rslave", "ro"},
	{"rnosuid"},
	{"rro"},
}

// bindFile mounts a file on one that is there, and on one that is made.
func bindFile(tb testing.TB, options []string) func(*process.Config) {
	tb.Helper()
	return func(c *process.Config) {
		source := filepath.Join(filepath.Dir(c.Bundle), "a-file")
		must(tb, os.WriteFile(source, []byte("x"), 0o644)) //nolint:gosec // as volumes are
		for _, destination := range []string{"/etc/passwd", "/var/run/made/file"} {
			mount(specs.Mount{Destination: destination, Type: "bind", Source: source, Options: append(slices.Clone(options), "bind")})(c)
		}
	}
}

// ofKind replaces the mount at destination by a new one, whose options these are.
func ofKind(kind, destination string, options []string) func(*process.Config) {
	return func(c *process.Config) {
		c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool {
			return m.Destination == destination || kind == "sysfs" && strings.HasPrefix(m.Destination, "/sys/")
		})
		m := specs.Mount{Destination: destination, Type: kind, Source: kind, Options: options}
		c.Spec.Mounts = slices.Insert(c.Spec.Mounts, 0, m)
	}
}

// inNamespacesOfAnother has the container join namespaces of a process of the test.
func inNamespacesOfAnother(tb testing.TB, c *process.Config, kinds ...specs.LinuxNamespaceType) {
	tb.Helper()
	holder := hold(tb, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS})
	for i, n := range c.Spec.Linux.Namespaces {
		if slices.Contains(kinds, n.Type) {
			c.Spec.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", holder, nsNames[n.Type])
		}
	}
}

// nsNames are the names in /proc/PID/ns.
var nsNames = map[specs.LinuxNamespaceType]string{
	specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts",
}

// hold starts a process that lives as long as the test, and returns its id.
func hold(tb testing.TB, attr *syscall.SysProcAttr) int {
	tb.Helper()
	holder := exec.Command("sleep", "1000")
	holder.SysProcAttr = attr
	resume := testReaper.Suspend()
	must(tb, holder.Start())
	testReaper.Register(holder.Process.Pid)
	resume()
	tb.Cleanup(func() {
		_ = holder.Process.Kill() // dead already is as good
		_ = holder.Wait()         // so is waited for
		testReaper.Unregister(holder.Process.Pid)
	})
	return holder.Process.Pid
}

// ownRootfs gives the root of a user namespace its root file system.
func ownRootfs(tb testing.TB, c *process.Config) {
	tb.Helper()
	inUserNamespace(c)
	must(tb, filepath.WalkDir(c.Rootfs, func(path string, _ os.DirEntry, err error) error {
		return cmp.Or(err, os.Lchown(path, 100000, 100000))
	}))
}

// inUserNamespaceOfAnother has the container join the user namespace of a process of the test.
// inUserNamespaceOfAnother puts the container into the user namespace of another process, and into those of its others
// that have flags.
func inUserNamespaceOfAnother(tb testing.TB, c *process.Config, flags uintptr) {
	tb.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	holder := hold(tb, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | flags, UidMappings: ids, GidMappings: ids})
	ownRootfs(tb, c)
	c.Spec.Linux.UIDMappings, c.Spec.Linux.GIDMappings = nil, nil
	list := c.Spec.Linux.Namespaces
	list[len(list)-1].Path = fmt.Sprintf("/proc/%d/ns/user", holder)
	for i, n := range list {
		if name, flag := namespaceOf(n.Type); flags&flag != 0 {
			list[i].Path = fmt.Sprintf("/proc/%d/ns/%s", holder, name)
		}
	}
}

// namespaceOf is the name in /proc/PID/ns, and the flag of clone(2), of a namespace that has either.
func namespaceOf(kind specs.LinuxNamespaceType) (name string, flag uintptr) {
	switch kind {
	case specs.PIDNamespace:
		return "pid", unix.CLONE_NEWPID
	case specs.NetworkNamespace:
		return "net", unix.CLONE_NEWNET
	case specs.IPCNamespace:
		return "ipc", unix.CLONE_NEWIPC
	case specs.UTSNamespace:
		return "uts", unix.CLONE_NEWUTS
	case specs.MountNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace:
	}
	return "", 0
}

// sysctlsOfAnother sets sysctls of namespaces that were made in the user namespace.
func sysctlsOfAnother(tb testing.TB, c *process.Config) {
	tb.Helper()
	inUserNamespaceOfAnother(tb, c, unix.CLONE_NEWPID|unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS)
	c.Spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
}

// timeNamespace gives the container a time namespace without offsets, as Docker does.
func timeNamespace(c *process.Config) {
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/process"
)

// bothWays are the two that start execs.
var bothWays = map[string]way{"launcher": byLauncher, "libcontainer": byLibcontainer}

// runtimes start inits by the launcher and by libcontainer.
func runtimes() map[string]*Runtime {
	return map[string]*Runtime{"launcher": testRuntime, "libcontainer": byLibcontainerOnly()}
}

// CVE-2024-21626: a descriptor of a directory of the host that whoever starts an exec has open, and the links that a
// container has made to such ones.
func TestExec_WorkingDirectoryIsNeverOnTheHost(t *testing.T) {
	outside := t.TempDir()
	marker := filepath.Join(outside, "marker")
	must(t, os.WriteFile(marker, []byte("of the host"), 0o644)) //nolint:gosec // to be read, if it is found
	const descriptors = 14
	b := withProbe(t, func(c *process.Config) {
		for fd := range descriptors {
			must(t, os.Symlink(fmt.Sprintf("/proc/self/fd/%d", fd), filepath.Join(c.Rootfs, fmt.Sprintf("work%d", fd))))
		}
	})
	dir, err := os.Open(outside) // in this process, which plays the shim
	must(t, err)
	defer dir.Close()
	for name, start := range bothWays {
		for fd := range descriptors {
			for _, cwd := range []string{
				fmt.Sprintf("/proc/self/fd/%d", fd), fmt.Sprintf("/work%d", fd), fmt.Sprintf("/proc/self/fd/%d/../../..", fd),
				fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd()),
			} {
				p := command("sh", "-c", "cat marker ../marker; cat "+strings.Repeat("../", 12)+marker[1:])
				p.Cwd = cwd
				if got := b.outcome(start, p); strings.Contains(strings.Join(got.Stdout, ""), "of the host") {
					t.Errorf("%s: in %s the exec reads the host: %+v", name, cwd, got)
				}
			}
		}
	}
}

// Root of a container owns the inode of the host's /dev/null, which an exec has where the container has none. The mode
// that is set here is the one it has anyway.
func TestExec_CannotChangeTheHostsNull(t *testing.T) {
	if !launch.HasMountSetattr() {
		t.Skip("SKIPPED: before Linux 5.12 there is no read-only mount of a device alone")
	}
	const script = "for fd in 0 3; do chmod 666 /proc/self/fd/$fd && echo mode of $fd; chown 0 /proc/self/fd/$fd && echo owner of $fd; " +
		"touch /proc/self/fd/$fd && echo times of $fd; echo x >/proc/self/fd/$fd || echo unwritable; done; true"
	for what, put := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"fifo":    func(path string) error { return unix.Mkfifo(path, 0o666) },
		"device":  func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		"link":    func(path string) error { return os.Symlink("/proc/self/fd/0", path) },
	} {
		b := withProbe(t, nil)
		null := fmt.Sprintf("/proc/%d/root/dev/null", b.Init().Pid())
		must(t, os.Remove(null))
		must(t, put(null))
		for name, start := range bothWays {
			p := command("sh", "-c", "exec 3<&0; { "+script+"; } 2>&-")
			if got := b.outcome(start, p); strings.Join(got.Stdout, "") != "" || got.Err != "" {
				t.Errorf("%s, with a /dev/null that is a %s: the exec changes %+v, want nothing", name, what, got)
			}
		}
	}
}

// A program may look its streams up by their path.
func TestExec_HasTheNullOfItsContainer(t *testing.T) {
	got := withProbe(t, nil).outcome(byLauncher, command("sh", "-c", "busybox readlink -f /proc/self/fd/0; echo x >&0"))
	if strings.Join(got.Stdout, "") != "/dev/null\n" || got.Status != 0 || got.Err != "" {
		t.Errorf("the exec has as stdin %+v, want a writable /dev/null", got)
	}
}

// CVE-2016-3697, CVE-2026-30892: a user is a number, whatever the container's passwd says of a user of that name.
func TestProcess_UserIsTheNumberWhateverPasswdSays(t *testing.T) {
	setPasswd := func(c *process.Config) {
		const passwd = "1000:x:0:0::/:/bin/sh\n1:x:0:0::/:/bin/sh\nroot:x:1000:0::/:/bin/sh\n"
		file := filepath.Join(c.Rootfs, "etc/passwd")
		must(t, os.WriteFile(file, []byte(passwd), 0o644)) //nolint:gosec // as in any system
	}
	for _, uid := range []uint32{1, 1000, 1 << 31, 1<<32 - 2} { // CVE-2024-40635: more than a signed number has
		want := fmt.Sprintf("%d\n", uid)
		b := withProbe(t, setPasswd)
		for name, start := range bothWays {
			p := command("id", "-u")
			p.User.UID, p.User.GID = uid, uid
			if got := b.outcome(start, p); strings.Join(got.Stdout, "") != want {
				t.Errorf("%s: exec as %d = %+v, want %q", name, uid, got, want)
			}
		}
		for name, r := range runtimes() {
			seen, _ := runInit(t, r, func(c *process.Config) {
				setPasswd(c)
				c.Spec.Process.Args = []string{"id", "-u"}
				c.Spec.Process.User.UID = uid
			})
			if got := strings.Join(seen.Stdout, ""); got != want {
				t.Errorf("%s: init as %d prints %q, error %q, want %q", name, uid, got, seen.Err, want)
			}
		}
	}
}

// CVE-2022-29162, CVE-2022-24769, CVE-2022-27650: capabilities that may be inherited, which nobody asked for.
func TestProcess_InheritsNoCapabilities(t *testing.T) {
	few := []string{"CAP_CHOWN", "CAP_KILL"}
	capabilities := &specs.LinuxCapabilities{Bounding: few, Effective: few, Permitted: few}
	print := []string{
		"sh", "-c", "while read -r k v; do [ $k = CapInh: -o $k = CapAmb: ] && echo $v; done </proc/self/status; true",
	}
	none := strings.Repeat("0", 16) + "\n" + strings.Repeat("0", 16) + "\n"
	b := withProbe(t, func(c *process.Config) { c.Spec.Process.Capabilities = capabilities })
	for name, start := range bothWays {
		for _, own := range []*specs.LinuxCapabilities{nil, capabilities} { // nil: the container's
			p := command(print...)
			p.Capabilities = own
			if got := b.outcome(start, p); strings.Join(got.Stdout, "") != none {
				t.Errorf("%s: exec with %v = %+v, want %q", name, own, got, none)
			}
		}
	}
	for name, r := range runtimes() {
		seen, _ := runInit(t, r, func(c *process.Config) {
			c.Spec.Process.Args, c.Spec.Process.Capabilities = print, capabilities
		})
		if got := strings.Join(seen.Stdout, ""); got != none {
			t.Errorf("%s: init prints %q, error %q, want %q", name, got, seen.Err, none)
		}
	}
}

// CVE-2026-115521: a root file system that is to be read-only, and an image that has a /proc of its own, in which the
// descriptors of whoever mounts lead elsewhere.
func TestInit_ReadOnlyWithTheImagesOwnProc(t *testing.T) {
	for name, r := range runtimes() {
		c := newConfig(t, "sleep", "1000")
		c.Spec.Mounts = []specs.Mount{
			{Destination: "/ro", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro"}},
			{Destination: "/bound", Type: "bind", Source: t.TempDir(), Options: []string{"bind", "ro"}},
			{Destination: "/rw", Type: "tmpfs", Source: "tmpfs"},
		}
		c.Spec.Root.Readonly = true
		for _, dir := range []string{"self/fd", "thread-self/fd", "1/fd"} {
			dir = filepath.Join(c.Rootfs, "proc", dir)
			must(t, os.MkdirAll(dir, 0o755))
			for fd := range 40 {
				must(t, os.Symlink("/rw", filepath.Join(dir, fmt.Sprint(fd))))
			}
		}
		b := createBy(t, r, c)
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", b.Init().Pid()))
		must(t, err)
		got := map[string]bool{} // whether it is read-only
		for line := range strings.Lines(string(mounts)) {
			const place, options = 4, 5 // proc_pid_mountinfo(5)
			fields := strings.Fields(line)
			got[fields[place]] = strings.HasPrefix(fields[options], "ro")
		}
		for place, want := range map[string]bool{"/": true, "/ro": true, "/bound": true, "/rw": false} {
			if readonly, ok := got[place]; !ok || readonly != want {
				t.Errorf("%s: %s is there: %t, read-only: %t, want %t", name, place, ok, readonly, want)
			}
		}
	}
}

// CVE-2023-25809: users of a container without a cgroup namespace can write to no cgroup, where the mount is read-only.
func TestInit_CgroupsAreReadOnlyForUsersOfAContainer(t *testing.T) {
	for name, r := range runtimes() {
		c := newConfig(t, "sleep", "1000")
		inUserNamespace(&c)
		must(t, os.Mkdir(filepath.Join(c.Rootfs, "sys"), 0o755))
		mount(specs.Mount{Destination: "/sys", Type: "tmpfs", Source: "tmpfs"},
			specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}})(&c)
		b := createBy(t, r, c).start()
		dirs := "/sys/fs/cgroup/*/" // the hierarchies of v1 lie in a file system of the container's own
		if unified() {
			dirs = "/sys/fs/cgroup/"
		}
		script := "for d in " + dirs + "; do [ -e $d/cgroup.procs ] && echo cgroup; " +
			"busybox mkdir $d/evil 2>/dev/null && echo made; (echo 1 >$d/cgroup.procs) 2>/dev/null && echo wrote; done; true"
		got := b.exec(t.Context(), command("sh", "-c", script))
		if lines := strings.ReplaceAll(got.out, "cgroup\n", ""); lines != "" || got.out == "" {
			t.Errorf("%s: the container's root = %+v, want cgroups that it cannot change", name, got)
		}
	}
}

// CVE-2021-41103, CVE-2024-25621: who is not root reads nothing of what is kept of a container.
func TestCreate_StateIsOfRootAlone(t *testing.T) {
	for name, r := range runtimes() {
		c := newConfig(t, "sleep", "1000")
		b := createBy(t, r, c)
		must(t, filepath.WalkDir(filepath.Join(c.Root, c.ID), func(path string, d fs.DirEntry, err error) error {
			must(t, err)
			info, err := d.Info()
			must(t, err)
			if readable := info.Mode().Perm() & 0o044; readable != 0 {
				t.Errorf("%s: %s has mode %o", name, path, info.Mode().Perm())
			}
			return nil
		}))
		b.start()
	}
}

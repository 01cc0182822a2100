// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/launcher"
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
	testx.Must(t, os.WriteFile(marker, []byte("of the host"), 0o644)) //nolint:gosec // to be read, if it is found
	const descriptors = 14
	b := withProbe(t, func(c *process.Config) {
		for fd := range descriptors {
			linked(t, fmt.Sprintf("/proc/self/fd/%d", fd), fmt.Sprintf("work%d", fd))(c)
		}
	})
	dir, err := os.Open(outside) // in this process, which plays the shim
	testx.Must(t, err)
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
	if !launcher.HasMountSetattr() {
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
		testx.Must(t, os.Remove(null))
		testx.Must(t, put(null))
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
		testx.Must(t, os.WriteFile(file, []byte(passwd), 0o644)) //nolint:gosec // as in any system
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
			testx.Must(t, os.MkdirAll(dir, 0o755))
			for fd := range 40 {
				testx.Must(t, os.Symlink("/rw", filepath.Join(dir, fmt.Sprint(fd))))
			}
		}
		b := createBy(t, r, c)
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", b.Init().Pid()))
		testx.Must(t, err)
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
		testx.Must(t, os.Mkdir(filepath.Join(c.Rootfs, "sys"), 0o755))
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
		testx.Must(t, filepath.WalkDir(filepath.Join(c.Root, c.ID), func(path string, d fs.DirEntry, err error) error {
			testx.Must(t, err)
			info, err := d.Info()
			testx.Must(t, err)
			if readable := info.Mode().Perm() & 0o044; readable != 0 {
				t.Errorf("%s: %s has mode %o", name, path, info.Mode().Perm())
			}
			return nil
		}))
		b.start()
	}
}

// hostileBundle is a root file system and volumes of an attacker.
type hostileBundle struct {
	name    string
	change  func(c *process.Config, outside string) // outside is a directory of the host
	refused bool
}

// hostileBundles are for published attacks on runc.
func hostileBundles(t *testing.T) []hostileBundle {
	t.Helper()
	return []hostileBundle{
		{"CVE-2021-30465: a mount point is a link out of the root", func(c *process.Config, outside string) {
			testx.Must(t, os.Symlink(filepath.Join("../../../../../../../../..", outside), filepath.Join(c.Rootfs, "link")))
			mount(specs.Mount{Destination: "/link/new", Type: "tmpfs", Source: "tmpfs"})(c)
		}, false},
		{"CVE-2019-16884: /proc is a link to a volume", func(c *process.Config, outside string) {
			testx.Must(t, os.Remove(filepath.Join(c.Rootfs, "proc")))
			testx.Must(t, os.Symlink("/data", filepath.Join(c.Rootfs, "proc")))
			c.Spec.Mounts = append([]specs.Mount{{Destination: "/data", Type: "bind", Source: outside, Options: []string{"rbind"}}}, c.Spec.Mounts...)
		}, true},
		{"CVE-2023-27561: what leads to /proc is a link", func(c *process.Config, outside string) {
			testx.Must(t, os.Symlink("/proc", filepath.Join(c.Rootfs, "evil")))
			mount(specs.Mount{Destination: "/evil/sys", Type: "bind", Source: outside, Options: []string{"rbind"}})(c)
		}, true},
		{"CVE-2025-31133: /dev/null is a link", func(c *process.Config, _ string) {
			without := c.Spec.Mounts[:1] // no /dev of the container's own
			c.Spec.Mounts = without
			testx.Must(t, os.Symlink("/proc/sys/kernel/core_pattern", filepath.Join(c.Rootfs, "dev/null")))
			c.Spec.Linux.MaskedPaths = []string{"/proc/kcore"}
		}, true},
		{"CVE-2025-52565: /dev/console is a link", func(c *process.Config, _ string) {
			c.Spec.Mounts = []specs.Mount{c.Spec.Mounts[0], {Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}}}
			testx.Must(t, os.Symlink("/proc/sys/kernel/core_pattern", filepath.Join(c.Rootfs, "dev/console")))
			c.Spec.Process.Terminal = true
		}, true},
		{"/dev/null is a link to what lies below a descriptor of the host", func(c *process.Config, _ string) {
			c.Spec.Mounts = c.Spec.Mounts[:1]
			c.Spec.Linux.MaskedPaths = []string{"/proc/kcore"}
			for fd := 4; fd < 20; fd++ {
				testx.Must(t, os.Symlink(fmt.Sprintf("/proc/self/fd/%d/dev/null", fd), filepath.Join(c.Rootfs, "dev", strconv.Itoa(fd))))
			}
			testx.Must(t, os.Symlink("4", filepath.Join(c.Rootfs, "dev/null")))
		}, true},
		{"CVE-2024-45310: a file to mount on is below a link", func(c *process.Config, outside string) {
			testx.Must(t, os.Symlink(outside, filepath.Join(c.Rootfs, "link")))
			mount(specs.Mount{Destination: "/link/file", Type: "bind", Source: "/dev/null", Options: []string{"bind"}})(c)
		}, false},
		{"CVE-2024-21626: the working directory is a descriptor", func(c *process.Config, _ string) {
			c.Spec.Process.Cwd = "/proc/self/fd/7"
		}, true},
		{"CVE-2024-21626: a link of the image leads to a descriptor", func(c *process.Config, _ string) {
			testx.Must(t, os.Symlink("/proc/self/fd/7", filepath.Join(c.Rootfs, "work")))
			c.Spec.Process.Cwd = "/work"
		}, true},
		{"CVE-2023-28642: /sys is a link to a volume", func(c *process.Config, outside string) {
			testx.Must(t, os.Symlink("/data", filepath.Join(c.Rootfs, "sys")))
			mount(specs.Mount{Destination: "/data", Type: "bind", Source: outside, Options: []string{"rbind"}},
				specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"})(c)
		}, true},
		{"CVE-2026-41579: /dev is a link out of the root", func(c *process.Config, outside string) {
			c.Spec.Mounts = c.Spec.Mounts[:1]
			testx.Must(t, os.RemoveAll(filepath.Join(c.Rootfs, "dev")))
			testx.Must(t, os.Symlink(filepath.Join("../../../../../../../../..", outside), filepath.Join(c.Rootfs, "dev")))
		}, false},
		{"CVE-2026-88264: /dev/console is a link to nothing on the host", func(c *process.Config, outside string) {
			c.Spec.Mounts = []specs.Mount{c.Spec.Mounts[0], {Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}}}
			testx.Must(t, os.Symlink(filepath.Join(outside, "console"), filepath.Join(c.Rootfs, "dev/console")))
			c.Spec.Process.Terminal = true
		}, true},
		{"CVE-2026-88265: /dev/null is a link to a file of the host", func(c *process.Config, outside string) {
			c.Spec.Mounts = c.Spec.Mounts[:1]
			testx.Must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("host"), 0o600))
			mount(specs.Mount{Destination: "/data", Type: "bind", Source: outside, Options: []string{"bind"}})(c)
			testx.Must(t, os.Symlink("/data/file", filepath.Join(c.Rootfs, "dev/null")))
			c.Spec.Process.User.UID = 1000
		}, true},
		{"CVE-2021-43784: a path that is longer than its length says", func(c *process.Config, _ string) {
			long := "/" + strings.Repeat("a", 1<<16+7)
			c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: long})
		}, true},
	}
}

// onHost lists what is in a directory of the host, with owners, modes and contents.
func onHost(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	testx.Must(t, err)
	for _, e := range entries {
		var st unix.Stat_t
		testx.Must(t, unix.Lstat(filepath.Join(dir, e.Name()), &st))
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		list = append(list, fmt.Sprintf("%s %o %d:%d %q %v", e.Name(), st.Mode, st.Uid, st.Gid, text, err))
	}
	return list
}

func TestInit_OfAHostileBundle(t *testing.T) {
	for _, b := range hostileBundles(t) {
		for name, r := range runtimes() {
			t.Run(b.name+", "+name, func(t *testing.T) {
				t.Parallel()
				outside := t.TempDir()
				var before []string
				seen, _ := runInit(t, r, func(c *process.Config) {
					b.change(c, outside)
					before = onHost(t, outside)
				})
				if (seen.Err != "") != b.refused {
					t.Errorf("error %q, want one: %t", seen.Err, b.refused)
				}
				if after := onHost(t, outside); !slices.Equal(after, before) {
					t.Errorf("outside of the root file system is %q, was %q", after, before)
				}
			})
		}
	}
}

// A container exchanges what the mounts of another, which shares the volume, lie on.
func TestInit_WhileATargetIsExchanged(t *testing.T) {
	outside := t.TempDir()
	for range max(1, 15/slowness()) {
		dir, link := "", ""
		seen := runInitWhile(t, func() {
			_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) // both exist
		}, func(c *process.Config) {
			dir, link = filepath.Join(c.Rootfs, "dir"), filepath.Join(c.Rootfs, "link")
			testx.Must(t, os.Mkdir(dir, 0o755))
			testx.Must(t, os.Symlink(outside, link))
			for range 20 {
				mount(specs.Mount{Destination: "/dir/a/b", Type: "tmpfs", Source: "evil"})(c)
			}
		})
		left, err := os.ReadDir(outside)
		testx.Must(t, err)
		if len(left) > 0 || strings.Contains(testx.Read(t, "/proc/self/mountinfo"), outside) {
			t.Fatalf("%v was made outside of the root file system, or mounted there; error %s", left, seen.Err)
		}
	}
}

// A container removes a directory of a volume over which the destination of another's mount leads.
func TestInit_WhileADestinationIsRemoved(t *testing.T) {
	outside := t.TempDir()
	for range max(1, 10/slowness()) {
		volume := t.TempDir()
		seen := runInitWhile(t, func() {
			_ = unix.Rmdir(filepath.Join(volume, "a")) // often it is not there
		}, func(c *process.Config) {
			up := "/volume/a" + strings.Repeat("/.", 400) + strings.Repeat("/..", 20)
			mount(specs.Mount{Destination: "/volume", Type: "bind", Source: volume, Options: []string{"rbind"}},
				specs.Mount{Destination: up + outside + "/made", Type: "bind", Source: "/dev/null", Options: []string{"bind"}})(c)
		})
		if left := testx.Files(t, outside); left != "" {
			t.Fatalf("%s was made outside of the root file system; error %q", left, seen.Err)
		}
	}
}

// runInitWhile is runInit while busy is called all the time, once the configuration is made.
func runInitWhile(t *testing.T, busy func(), change func(*process.Config)) (seen inContainer) {
	t.Helper()
	made := make(chan struct{})
	whileBusy(func() { <-made; busy() }, func() {
		seen, _ = runInit(t, testRuntime, func(c *process.Config) { change(c); close(made) })
	})
	return seen
}

func ownHash(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	testx.Must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	testx.Must(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// CVE-2019-5736: while the first stage of a process runs our program, the
// container can reach it by /proc/PID/exe, and keep it open until nobody runs it.
func TestInit_CannotReachOurExecutable(t *testing.T) {
	before := ownHash(t)
	var own unix.Stat_t
	testx.Must(t, unix.Stat("/proc/self/exe", &own))

	b := create(t, newConfig(t, "sleep", "1000"))
	exe := fmt.Sprintf("/proc/%d/exe", b.Init().Pid())
	var theirs unix.Stat_t
	testx.Must(t, unix.Stat(exe, &theirs))
	if own.Dev == theirs.Dev && own.Ino == theirs.Ino {
		t.Fatalf("the first stage runs our own file, %s", exe)
	}
	kept, err := os.Open(exe)
	testx.Must(t, err)
	defer kept.Close()

	// The same from inside: a shell keeps the program of process 1 open.
	done := make(chan result, 1)
	script := "exec 3</proc/1/exe && : > /tmp/open; while [ ! -e /tmp/go ]; do sleep 0.01; done; (echo evil > /proc/self/fd/3) && echo written; (echo evil >> /proc/self/fd/3) && echo appended; echo end"
	go func() { done <- b.exec(t.Context(), command("sh", "-c", script)) }()
	testx.Eventually(t, "the shell", func() bool { _, err := os.Stat(filepath.Join(b.config.Rootfs, "tmp/open")); return err == nil })

	b.start()
	testx.Eventually(t, "the program", func() bool {
		target, err := os.Readlink(exe)
		return err == nil && target == "/bin/busybox"
	})
	testx.Must(t, os.WriteFile(filepath.Join(b.config.Rootfs, "tmp/go"), nil, 0o600))
	if got, want := <-done, (result{0, "end\n", nil}); got != want {
		t.Errorf("the shell in the container = %+v, want %+v", got, want)
	}
	for _, flag := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND} {
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", kept.Fd()), flag, 0)
		if err != nil {
			continue
		}
		if n, err := f.WriteString("evil"); err == nil {
			t.Errorf("wrote %d bytes into what the first stage ran, opened with %#x", n, flag)
		}
		_ = f.Close() // only the write matters
	}
	if after := ownHash(t); after != before {
		t.Errorf("our executable changed from %s to %s", before, after)
	}
}

// A container that takes away the permission to execute the file of the launcher, by an ACL, would have libcontainer
// start all processes of its pod. Root of a container owns the file, and reaches it in a held init and in its own init.
func TestLauncher_NoContainerChangesItsFile(t *testing.T) {
	held := create(t, newConfig(t, "sleep", "1000"))
	acl := []byte{2, 0, 0, 0} // POSIX_ACL_XATTR_VERSION
	for _, tag := range []byte{0x01, 0x04, 0x20} {
		const read = 4
		acl = append(acl, tag, 0, read, 0, 0xff, 0xff, 0xff, 0xff)
	}
	const script = `for c in "chmod 0" "chown 1" touch "truncate -s 0"; do busybox $c /proc/1/exe 2>&1; done`
	for name, b := range map[string]*box{"launcher": held, "init": create(t, reapedConfig(t, "sleep", "1000")).start()} {
		exe := fmt.Sprintf("/proc/%d/exe", b.Init().Pid())
		if link, err := os.Readlink(exe); err != nil || link != "/containerd-shim-sandbox-v1:launcher" {
			t.Fatalf("%s: %s = %q, %v, want the launcher's file", name, exe, link, err)
		}
		for attribute, value := range map[string][]byte{"system.posix_acl_access": acl, "user.x": []byte("x")} {
			if err := unix.Setxattr(exe, attribute, value, 0); !errors.Is(err, unix.EROFS) {
				t.Errorf("%s: set %s: %v, want %v", name, attribute, err, unix.EROFS)
			}
		}
		got := b.exec(t.Context(), &specs.Process{Args: []string{"sh", "-c", script}, Cwd: "/", Env: []string{"PATH=/bin"}})
		if n := strings.Count(got.out, "Read-only file system"); name == "launcher" && n != 4 {
			t.Errorf("%s: the container says %+v, want 4 refusals", name, got)
		}
	}
	for _, reaped := range []bool{true, false} {
		c := newConfig(t, "sleep", "1000")
		c.Options.Init = reaped
		b := create(t, c).start()
		if got := b.exec(t.Context(), command("true")); got != (result{}) {
			t.Errorf("exec in another container = %+v", got)
		}
		if l := b.RuntimeContainer.(*container).Launch(); l.Init != "launcher" || l.ExecsByLibcontainer != 0 {
			t.Errorf("another container was started so: %+v", l)
		}
	}
}

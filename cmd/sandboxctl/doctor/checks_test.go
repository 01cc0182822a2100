// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
)

func TestExamine_OfASoundNodeFindsNothing(t *testing.T) {
	r := Examine(t.Context(), newTree(t).config())
	for _, c := range r.Checks {
		if c.Status != OK {
			t.Errorf("%s: %+v, want ok", c.Check, c.Findings)
		}
	}
	if len(r.Leftovers) > 0 {
		t.Errorf("leftovers: %+v, want none", r.Leftovers)
	}
}

// breakage breaks one thing of a sound node.
type breakage struct {
	check string
	what  string
	do    func(x *tree)
	want  Status
	text  string // in the finding
	fix   string // in its remedy
}

func breakages() []breakage {
	write := func(name, text string) func(*tree) { return func(x *tree) { x.write(name, text) } }
	replace := func(name, from, to string) func(*tree) { return func(x *tree) { x.replace(name, from, to) } }
	remove := func(name string) func(*tree) { return func(x *tree) { x.remove(name) } }
	const mounts = "proc/self/mountinfo"
	const containerdGroup = "sys/fs/cgroup/system.slice/containerd.service/"
	return []breakage{
		{"privileges", "a user", func(x *tree) { x.euid = 1000 }, Failure, "user 1000", "sudo"},
		{"kernel-version", "an old one", write("proc/sys/kernel/osrelease", "5.4.0-1"), Failure, "5.4.0-1: the shim refuses", "5.10"},
		{"kernel-features", "a call is refused", func(x *tree) { x.missing["openat2"] = errors.New("not permitted") }, Failure, "openat2: not permitted", "seccomp"},
		{"kernel-features", "before 5.12", func(x *tree) { x.missing[recursiveAttributes] = errors.New("no such call") }, Warning, "recursive read-only", "5.12"},
		{"namespaces", "none are allowed", write("proc/sys/user/max_net_namespaces", "0"), Failure, "no container", "user.max_net_namespaces=15000"},
		{"namespaces", "none of users", write("proc/sys/user/max_user_namespaces", "0"), Warning, "hostUsers", "user.max_user_namespaces=15000"},
		{"cgroup-mode", "v1", replace(mounts, "/sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate", "/sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), Warning, "v1: containers run", "unified_cgroup_hierarchy=1"},
		{"cgroup-mode", "none", replace(mounts, "cgroup2", "tmpfs"), Failure, "no cgroups", "mount -t cgroup2"},
		{"cgroup-controllers", "memory is disabled", write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids"), Failure, "memory is absent", "cgroup_disable="},
		{"cgroup-controllers", "cpuset is disabled", write("sys/fs/cgroup/cgroup.controllers", "cpu memory io pids"), Warning, "cpuset is absent", "cgroup_disable="},
		{"cgroup-delegation", "systemd does not delegate", func(x *tree) { x.must(unix.Removexattr(x.path(containerdGroup), "trusted.delegate")) }, Warning, "does not delegate", "Delegate=yes"},
		{"cgroup-delegation", "v1 beside v2, where systemd delegates", func(x *tree) {
			x.write("sys/fs/cgroup/systemd/system.slice/containerd.service/cgroup.procs", "")
			x.replace(mounts, "23 1 ", "26 22 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n23 1 ")
			x.write("proc/100/cgroup", "1:name=systemd:/system.slice/containerd.service\n0::/system.slice/containerd.service\n")
		}, OK, "systemd delegates containerd.service", ""},
		{"containerd", "it does not run", func(x *tree) { x.down = true }, Failure, "connection refused", "systemctl start containerd"},
		{"containerd", "it hangs", func(x *tree) { x.silent = true }, Failure, "does not answer: deadline", "kill -USR1 100"},
		{"containerd-version", "an old one", func(x *tree) { x.version = "1.5.18" }, Failure, "1.5.18", "install containerd"},
		{"containerd-version", "a new one", func(x *tree) { x.version = "v3.0.0" }, Warning, "newer", "newer release"},
		{"handlers", "none of this runtime", replace(configFile, "io.containerd.sandbox.v1", "io.containerd.sandbox.v2"), Failure, "there are: runc (io.containerd.runc.v2), sandbox (io.containerd.sandbox.v2)", "install.sh install"},
		{"handlers", "not readable", write(configFile, "version = ["), Failure, "cannot be read", "config dump"},
		{"handlers", "options, which forbid users of pods", func(x *tree) {
			x.write(configFile, soundConfig+`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.sandbox.options]`+"\nSystemdCgroup = true\n")
			x.old(configFile)
		}, Warning, "users of their own", "containerd-shim-sandbox-v1/config.toml"},
		{"handlers", "changed since containerd was started", write(configFile, soundConfig), Warning, "was changed after", "restart containerd"},
		{"shim-binary", "it is not there", remove("usr/bin/" + program), Failure, "/opt/containerd/bin, /usr/local/bin, /usr/bin", "make install"},
		{"shim-binary", "it is not executable", func(x *tree) { x.chmod("usr/bin/"+program, 0o644) }, Failure, "not executable", "chmod 0755 /usr/bin/" + program},
		{"shim-binary", "others can write it", func(x *tree) { x.chmod("usr/bin/"+program, 0o777) }, Failure, "(0777)", "chmod 0755"},
		{"shim-binary", "others can write its directory", func(x *tree) { x.chmod("usr/bin", 0o775) }, Failure, "usr/bin can be written by others", "chmod 0755"},
		{"shim-binary", "it is another user's", func(x *tree) { x.must(os.Chown(x.path("usr/bin/"+program), 1000, 0)) }, Failure, "does not belong to root", "chown root:"},
		{"shim-binary", "it does not run", write("usr/bin/"+program, "#!/bin/sh\necho broken >&2; exit 1\n"), Failure, "does not run: exit status 1: broken", "install"},
		{"shim-binary", "it is another program", write("usr/bin/"+program, "#!/bin/sh\necho hello\n"), Failure, "is another program", "install"},
		{"shim-binary", "it has another version", func(x *tree) { x.info("0.9", "") }, Warning, "is version 0.9, and this program is 1.0", "same release"},
		{"shim-binary", "runtime_path leads nowhere", replace(configFile, `"io.containerd.sandbox.v1"`, "\"io.containerd.sandbox.v1\"\nruntime_path = \"/opt/none\""), Failure, "/opt/none, which containerd's configuration names: no such file", "install"},
		{"shim-binary", "it refuses the default configuration file", func(x *tree) { x.info("1.0", "Listen is wrong") }, Failure, "without options of their own: Listen is wrong", "fix or remove"},
		{"shim-upgrade", "a former program", func(x *tree) { x.former(200) }, Warning, "another program is installed than these shims run: lives in namespace default, pid 200", "sandboxctl upgrade --all"},
		{"shim-upgrade", "many former programs", func(x *tree) {
			for pid := 400; pid < 407; pid++ {
				x.shimProcess(pid, fmt.Sprint("c", pid))
				x.former(pid)
			}
		}, Warning, "c404 in namespace default, pid 404; and 2 more", "sandboxctl upgrade --all"},
		{"shim-upgrade", "of another containerd", func(x *tree) {
			x.former(200)
			x.replace("proc/200/cmdline", "/run/containerd/containerd.sock", "/run/other.sock")
		}, OK, "all that run", ""},
		{"apparmor", "without its parser", remove("sbin/apparmor_parser"), Warning, "no /sbin/apparmor_parser", "apt-get install apparmor"},
		{"apparmor", "without securityfs", remove("sys/kernel/security"), Warning, "securityfs", "mount -t securityfs"},
		{"apparmor", "containerd does not use it", replace(configFile, "enable_selinux = true", "enable_selinux = true\ndisable_apparmor = true"), Warning, "disable_apparmor", "disable_apparmor = false"},
		{"apparmor", "the configuration cannot be read", write(configFile, "version = ["), NotApplicable, "cannot be read", ""},
		{"selinux", "the configuration cannot be read", write(configFile, "version = ["), NotApplicable, "cannot be read", ""},
		{"selinux", "containerd does not label", replace(configFile, "enable_selinux = true", ""), Warning, "label of containerd", "enable_selinux = true"},
		{"inotify", "all instances are used", func(x *tree) { x.inotify(128) }, Failure, "root has 128", "max_user_instances=8192"},
		{"inotify", "nearly all instances are used", func(x *tree) { x.inotify(110) }, Warning, "of which root has 110", "max_user_instances=8192"},
		{"tasks-max", "nearly all there may be", func(x *tree) {
			x.write(containerdGroup+"pids.max", "4000")
			x.write(containerdGroup+"pids.current", "3900")
		}, Warning, "3900 threads", "containerd.service TasksMax=infinity"},
		{"tasks-max", "few", write(containerdGroup+"pids.max", "512"), Warning, "ten threads", "TasksMax=infinity"},
		{"memory-overcommit", "nothing is left", func(x *tree) {
			x.write("proc/sys/vm/overcommit_memory", "2")
			x.replace("proc/meminfo", "500", "990")
		}, Warning, "99%", "vm.overcommit_memory=0"},
		{"run-space", "no inodes", func(x *tree) { x.small("nr_inodes=20", "inodes") }, Failure, "cannot be made", "nr_inodes=1m"},
		{"run-space", "no bytes", func(x *tree) { x.small("size=64k", "bytes") }, Failure, ": 0% and", "size=50%"},
		{"leftover-bundles", "a dead shim", func(x *tree) { x.bundle("dead") }, Warning, "default/dead: its shim is dead", "systemctl restart containerd"},
		{"leftover-bundles", "a dead shim, and containerd is down", func(x *tree) { x.bundle("dead"); x.down = true }, Failure, "does not answer", "systemctl start containerd"},
		{"leftover-sockets", "nobody listens", func(x *tree) { x.listen(socketDir+"dead", false); x.old(socketDir + "dead") }, Warning, "nobody listens", "rm -- /"},
		{"leftover-mounts", "a bundle that nobody has", func(x *tree) { x.mountLine("default/dead/rootfs") }, Warning, "default/dead/rootfs", "umount -- /" + task + "default/dead/rootfs"},
		{"leftover-states", "no process", func(x *tree) { x.stateOf("dead", "") }, Warning, "runc/default/dead: containerd does not know", "delete --force dead"},
		{"leftover-states", "processes without a shim", func(x *tree) { x.stateOf("dead", "77") }, Failure, "1 processes live in its cgroups", "delete --force dead"},
		{"leftover-shims", "its bundle is gone", func(x *tree) { x.orphan("dead") }, Warning, "dead in namespace default, pid 300", "kill -TERM 300"},
		{"leftover-shims", "its bundle is gone, and it has containers", func(x *tree) { x.orphan("dead"); x.write("proc/300/task/300/children", "301 ") }, Failure, "1 processes of containers", "kill -TERM 300"},
		{"leftover-bundles", "a dead shim of a container that containerd knows", func(x *tree) { x.bundle("c"); x.knows("c") }, Failure, "still knows the container", "task rm -f c"},
		{"leftover-bundles", "a bundle that containerd has hidden", func(x *tree) {
			x.bundle(".half")
			x.mountLine("default/.half/rootfs")
		}, Warning, "its shim is dead (mounts: 1, processes: 0)", "umount -- /" + task + "default/.half/rootfs && rm -r --one-file-system -- /"},
		{"leftover-mounts", "a container with processes", func(x *tree) {
			x.mountLine("default/dead/rootfs")
			x.stateOf("dead", "77")
		}, Failure, "1 processes of the container live", "umount -- /"},
		{"leftover-mounts", "a name for a shell", func(x *tree) { x.mountLine(`default/dead/rootfs/$(reboot)'`) }, Warning, "$(reboot)'", `umount -- '/` + task + `default/dead/rootfs/$(reboot)'\'''`},
	}
}

// former has a process run a program in whose place another one is.
func (x *tree) former(pid int) {
	x.Helper()
	exe, proc := "usr/bin/"+program+" (deleted)", fmt.Sprintf("proc/%d/", pid)
	x.write(exe, "")
	x.remove(proc + "exe")
	x.link(x.path(exe), proc+"exe")
	x.link("/", proc+"root")
}

func (x *tree) knows(id string) { x.known[leftover.Name{Namespace: "default", ID: id}] = true }

// inotify gives a process instances.
func (x *tree) inotify(n int) {
	x.Helper()
	for i := range n {
		x.link("anon_inode:inotify", fmt.Sprintf("proc/200/fd/%d", i))
	}
}

// small mounts a file system with little room where containerd has its state, and fills it.
func (x *tree) small(option, what string) {
	x.Helper()
	at := x.path("run/containerd")
	x.must(unix.Mount("tmpfs", at, "tmpfs", 0, option))
	x.Cleanup(func() { x.must(unix.Unmount(at, 0)) })
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(at, fmt.Sprint(i)), make([]byte, map[string]int{"bytes": 4096}[what]), 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		x.must(err)
	}
}

func (x *tree) mountLine(below string) {
	x.Helper()
	x.replace("proc/self/mountinfo", "24 23", "25 23 0:24 / /"+task+below+" rw - overlay overlay rw\n24 23")
}

// stateOf makes the state directory and the cgroup of a container.
func (x *tree) stateOf(id, procs string) {
	x.Helper()
	x.write("sys/fs/cgroup/default/"+id+"/cgroup.procs", procs)
	x.write(stateDir+"default/"+id+"/state.json", x.state(id))
}

func TestCheck_FindsWhatIsBroken(t *testing.T) {
	for _, b := range breakages() {
		t.Run(b.check+"/"+b.what, func(t *testing.T) {
			x := newTree(t)
			b.do(x)
			r := Examine(t.Context(), x.config())
			got := r.result(t, b.check)
			i := slices.IndexFunc(got.Findings, func(f Finding) bool { return f.Status == b.want && strings.Contains(f.Text, b.text) })
			if got.Status != b.want || i < 0 {
				t.Fatalf("%s: %+v, want %s with %q", b.check, got, b.want, b.text)
			}
			if f := got.Findings[i]; !strings.Contains(f.Fix, b.fix) {
				t.Errorf("remedy of %q = %q, want %q in it", f.Text, f.Fix, b.fix)
			}
			if r.Status.rank() < b.want.rank() {
				t.Errorf("status of the node = %s, want %s at least", r.Status, b.want)
			}
		})
	}
}

func TestCheck_EachIsBrokenByATest(t *testing.T) {
	broken := map[string]bool{}
	for _, b := range breakages() {
		broken[b.check] = true
	}
	for _, c := range Checks() {
		if !broken[c.Name] {
			t.Errorf("no test breaks what %s looks at", c.Name)
		}
		if c.What == "" || c.Fix == "" {
			t.Errorf("%s: want what it looks at and how to fix it", c.Name)
		}
		delete(broken, c.Name)
	}
	for name := range broken {
		t.Errorf("tests break %q, which is no check", name)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
)

// process adds one that is in the mount namespace mnt:[MOUNTS] and began at a tick.
func (x *tree) process(pid, parent, mounts, started int) {
	x.Helper()
	x.write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (a) b) S %d%s %d 0 0", pid, parent, strings.Repeat(" 0", 17), started))
	x.remove(fmt.Sprintf("proc/%d/ns/mnt", pid))
	x.link(fmt.Sprintf("mnt:[%d]", mounts), fmt.Sprintf("proc/%d/ns/mnt", pid))
}

// lost makes the state directory of container c, which began at tick 50, without a bundle.
func (x *tree) lost(procs string) {
	x.Helper()
	x.stateOf("c", procs)
	x.write(stateDir+"default/c/state.json", strings.Replace(x.state("c"), "{", `{"init_process_start": 50, `, 1))
}

// only returns the only leftover of a tree.
func (x *tree) only() leftover.Leftover {
	x.Helper()
	r := Examine(x.Context(), x.config())
	if len(r.Leftovers) != 1 {
		x.Fatalf("leftovers: %+v, want one", r.Leftovers)
	}
	return r.Leftovers[0]
}

// What a program may remove.
func TestKeep_NothingThatIsCertain(t *testing.T) {
	for _, tt := range []struct {
		what string
		do   func(x *tree)
	}{
		{"a bundle with nothing but files", func(x *tree) { x.bundle("c") }},
		{"a bundle with mounts of a shim", func(x *tree) { x.bundle("c"); x.mountLine("default/c/rootfs"); x.mountLine("default/c/shm") }},
		{"a bundle with a process", func(x *tree) { x.bundle("c"); x.lost("400"); x.process(400, 1, 7, 60) }},
		{"a bundle with processes one of which has ended", func(x *tree) {
			x.bundle("c")
			x.lost("400 401")
			x.process(400, 1, 7, 50)
		}},
		{"a pod", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim.pod.json", `{"ID": "c", "Members": {"d": {"Bundle": "/`+task+`default/d", "Root": "/run/containerd/runc/default"}}}`)
		}},
		{"a state directory", func(x *tree) { x.lost("400"); x.process(400, 1, 7, 60) }},
		{"a state directory, beside a shim that says which containers it has", func(x *tree) {
			x.lost("")
			x.bundle("d")
			x.orphan("d")
		}},
		{"a state directory, beside a process of a user with the command line of a shim", func(x *tree) {
			x.lost("")
			x.orphan("c")
			x.remove("proc/300/exe")
			x.write("proc/300/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
		}},
		{"a state directory, beside a user's process whose command line cannot be read", func(x *tree) {
			x.lost("")
			x.orphan("c")
			x.withhold(300)
			x.write("proc/300/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
		}},
		{"a state directory, beside containers' processes whose command lines cannot be read", func(x *tree) {
			x.lost("")
			x.orphan("d")
			x.bundle("d")
			for pid := range 10 {
				x.process(290+pid, 1, 7, 60)
				x.link("/usr/bin/python3", fmt.Sprintf("proc/%d/exe", 290+pid))
				x.withhold(290 + pid)
			}
		}},
		{"a mount", func(x *tree) { x.mountLine("default/c/rootfs") }},
		{"a shim without containers", func(x *tree) { x.orphan("c") }},
	} {
		t.Run(tt.what, func(t *testing.T) {
			x := newTree(t)
			tt.do(x)
			if l := x.only(); l.Keep != "" {
				t.Errorf("%s is kept: %s", l.Text, l.Keep)
			}
		})
	}
}

// What may be somebody's stays, and the report says why.
func TestKeep_WhatMayBeSomebodys(t *testing.T) {
	for _, tt := range []struct {
		what, why string
		do        func(x *tree)
	}{
		{"another mount in a bundle", "is mounted there, and not by a shim", func(x *tree) { x.bundle("c"); x.mountLine("default/c/host-rootfs/0") }},
		{"a mount at the bundle itself", "is mounted there, and not by a shim", func(x *tree) { x.bundle("c"); x.mountLine("default/c") }},
		{"another mount in a bundle that nobody has", "is mounted there, and not by a shim", func(x *tree) { x.mountLine("default/c/volume") }},
		{"a mount in a state directory", "is mounted there, and not by a shim", func(x *tree) {
			x.lost("")
			x.replace("proc/self/mountinfo", "24 23", "25 23 0:24 / /"+stateDir+"default/c/x rw - tmpfs tmpfs rw\n24 23")
		}},
		{"a list of the pod that cannot be read", "which containers its shim had cannot be read", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim.pod.json", "{")
		}},
		{"a list of the pod that leads elsewhere", "of its pod names", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim.pod.json", `{"ID": "c", "Members": {"d": {"Bundle": "/home/d"}}}`)
		}},
		{"a list of the pod that leads to no id", "which containers its shim had cannot be read", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim.pod.json", `{"ID": "c", "Members": {"../d": {"Bundle": "/home/d"}}}`)
		}},
		{"a link to a list elsewhere", "which is no bundle", func(x *tree) { x.bundle("c"); x.link("/home", task+"default/c/shim.home") }},
		{"a container whose creation was not finished", "its creation was not finished", func(x *tree) {
			x.bundle("c")
			x.write(stateDir+"default/c/exec.fifo", "")
		}},
		{"the first cgroup of the machine", "which is no cgroup of one container", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "/sys/fs/cgroup/default/c", "/sys/fs/cgroup")
		}},
		{"a cgroup elsewhere", "which is no cgroup of one container", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "/sys/fs/cgroup/default/c", "/sys/fs/cgroup/../x")
		}},
		{"the first cgroup of the machine, by another name", "which is no cgroup of one container", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "/sys/fs/cgroup/default/c", "/sys/fs/cgroup/default/..")
		}},
		{"the cgroup of another container", "container lives in namespace default has its cgroup", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "/sys/fs/cgroup/default/c", "/sys/fs/cgroup/default/lives")
		}},
		{"a cgroup around that of another container", "container lives in namespace default has its cgroup", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "/sys/fs/cgroup/default/c", "/sys/fs/cgroup/default")
		}},
		{"the same in a bundle", "container lives in namespace default has its cgroup", func(x *tree) {
			x.bundle("c")
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "/sys/fs/cgroup/default/c", "/sys/fs/cgroup/default")
		}},
		{"containerd in the cgroup", "process 100, which is not the container's", func(x *tree) { x.lost("100") }},
		{"this program in the cgroup", "which is not the container's", func(x *tree) { x.lost(fmt.Sprint(os.Getpid())) }},
		{"a process of another PID namespace in the cgroup", "process 0", func(x *tree) { x.lost("0") }},
		{"a process that is older than the container", "older than the container", func(x *tree) { x.lost("400"); x.process(400, 1, 7, 49) }},
		{"a process with the mounts of the host", "not in a mount namespace of a container", func(x *tree) { x.lost("400"); x.process(400, 1, 0, 60) }},
		{"a process whose mounts cannot be seen", "not in a mount namespace of a container", func(x *tree) {
			x.lost("400")
			x.process(400, 1, 7, 60)
			x.remove("proc/400/ns/mnt")
		}},
		{"a cgroup whose processes cannot be listed", "which processes its cgroups have", func(x *tree) {
			x.lost("")
			x.must(os.MkdirAll(x.path("sys/fs/cgroup/default/c/nested/cgroup.procs"), 0o755))
		}},
		{"a cgroup of a bundle, with a list that is none", "which processes its cgroups have", func(x *tree) {
			x.bundle("c")
			x.lost("x")
		}},
		{"a process of a shim that lives", "the shim of lives, pid 200, lives and has its process 401", func(x *tree) {
			x.lost("401")
			x.process(401, 400, 7, 61)
			x.process(400, shimPid, 7, 60)
			x.process(shimPid, 1, 0, 40)
		}},
		{"a container of a pod whose shim lives", "the shim of lives lives and has it", func(x *tree) {
			x.lost("")
			x.write(task+"default/lives/shim.pod.json", `{"ID": "lives", "Members": {"c": {"Bundle": "/`+task+`default/c"}}}`)
		}},
		{"a container that a shim may have", "the shim of d, pid 300, has no bundle", func(x *tree) {
			x.lost("")
			x.orphan("d")
			x.known["default"]["d"] = true
		}},
		{"a mount of a container that a shim may have", "the shim of d, pid 300, has no bundle", func(x *tree) {
			x.mountLine("default/c/rootfs")
			x.orphan("d")
			x.known["default"]["d"] = true
		}},
		{"a pod with a container that has a shim of its own", "the shim of d, pid 300, lives", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim.pod.json", `{"ID": "c", "Members": {"d": {"Bundle": "/`+task+`default/d"}}}`)
			x.orphan("d")
			x.bundle("d")
		}},
		{"a container of another place", "where this containerd has none of it", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", "task/default/c", "task/default/other")
		}},
		{"a shim with containers", "it has 1 processes of containers", func(x *tree) { x.orphan("c"); x.write("proc/300/task/300/children", "301") }},
		{"a container that containerd knows", "containerd still knows the container", func(x *tree) { x.bundle("c"); x.known["default"]["c"] = true }},
		{"a bundle whose state directory is another containerd's", "where this containerd has none of it", func(x *tree) {
			x.bundle("c")
			x.lost("400")
			x.process(400, 1, 7, 60)
			x.replace(stateDir+"default/c/state.json", "/run/containerd/io", "/run/other/io")
		}},
		{"a bundle, and a process with the command line of its shim in its cgroup", "what may be the shim of c, pid 400, lives", func(x *tree) {
			x.bundle("c")
			x.lost("400")
			x.process(400, 1, 7, 60)
			x.write("proc/400/cmdline", "containerd-shim-x\x00-namespace\x00default\x00-id\x00c\x00")
		}},
		{"a state directory, and a process with the command line of its shim", "what may be the shim of c, pid 300, lives", func(x *tree) {
			x.lost("")
			x.orphan("c")
			x.remove("proc/300/exe")
			x.link(x.path("usr/bin/containerd"), "proc/300/exe")
		}},
		{"a process whose command line cannot be read", "what may be the shim of any container, pid 300, whose", func(x *tree) {
			x.lost("")
			x.orphan("d")
			x.withhold(300)
		}},
		{"one with the program of a shim, and other mounts", "what may be the shim of any container, pid 300, whose", func(x *tree) {
			x.lost("")
			x.orphan("d")
			x.process(300, 1, 7, 60)
			x.withhold(300)
		}},
		{"one that has the name of a shim", "what may be the shim of any container, pid 300, whose", func(x *tree) {
			x.bundle("c")
			x.process(300, 1, 7, 60)
			x.link("/usr/bin/python3", "proc/300/exe")
			x.write("proc/300/comm", "containerd-shim\n")
			x.withhold(300)
		}},
		{"a shim whose command line is longer than is read", "what may be the shim of c, pid 300, lives", func(x *tree) {
			x.mountLine("default/c/rootfs")
			x.orphan("c")
			x.replace("proc/300/cmdline", "-address", "-x\x00"+strings.Repeat("\x00", 1<<20)+"\x00-address")
		}},
		{"one that says nothing in what is read", "what may be the shim of any container, pid 300, whose", func(x *tree) {
			x.mountLine("default/c/rootfs")
			x.orphan("c")
			x.replace("proc/300/cmdline", "-namespace", strings.Repeat("\x00", 1<<20)+"-namespace")
		}},
		{"a mount, and a process with the command line of its shim, by a program that is a user's", "what may be the shim of c, pid 300, lives", func(x *tree) {
			x.mountLine("default/c/rootfs")
			x.orphan("c")
			x.must(os.Chown(x.path("usr/bin/"+program), 1000, 1000))
		}},
		{"a process of what may be another's shim", "what may be the shim of b, pid 400, lives and has its process 400", func(x *tree) {
			x.lost("400")
			x.process(400, 1, 7, 60)
			x.write("proc/400/cmdline", "containerd-shim-x\x00-namespace\x00a\x00-id\x00b\x00")
		}},
		{"a state directory elsewhere than the default, whose own bundle is gone", "is not below /run/containerd/runc, is gone", func(x *tree) {
			x.lost("")
			x.must(os.MkdirAll(x.path("run/other/default"), 0o711))
			x.must(os.Rename(x.path(stateDir+"default/c"), x.path("run/other/default/c")))
			x.write(task+"default/pod/config.json", "{}")
			x.write(task+"default/pod/address", "unix:///"+socketDir+"pod")
			x.write(task+"default/pod/shim-binary-path", "/usr/bin/containerd-shim-runc-v2")
			x.write(task+"default/pod/shim.pod.json", `{"ID": "pod", "Members": {"c": {"Bundle": "/`+task+`default/c", "Root": "/run/other/default"}}}`)
		}},
		{"a state that names no cgroup", "names no cgroup", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", `{"": "/sys/fs/cgroup/default/c"}`, `{}`)
		}},
		{"a state that libcontainer cannot read", "its state cannot be read", func(x *tree) {
			x.lost("")
			x.replace(stateDir+"default/c/state.json", `"config"`, `"id": 5, "config"`)
		}},
		{"a container that another runtime's shim of a pod may have", "the shim of pod, pid 300, has no bundle", func(x *tree) {
			x.lost("")
			x.orphan("pod")
			x.replace("proc/300/cmdline", program, "containerd-shim-runc-v2")
			x.write(task+"default/pod/shim-binary-path", "/usr/bin/containerd-shim-runc-v2")
			x.write(task+"default/pod/address", "unix:///"+socketDir+"pod")
			x.listen(socketDir+"pod", true)
			x.known["default"]["pod"] = true
		}},
		{"a mount in a bundle, while nobody says which containers there are", "is mounted there, and not by a shim", func(x *tree) {
			x.bundle("c")
			x.mountLine("default/c/volume")
			x.silent = true
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			x := newTree(t)
			tt.do(x)
			l := x.only()
			if !strings.Contains(l.Keep, tt.why) {
				t.Errorf("%s: is kept for %q, want %q", l.Text, l.Keep, tt.why)
			}
			f := Examine(t.Context(), x.config()).result(t, string(l.Kind)).Findings[0]
			if f.Status != Failure || !strings.Contains(f.Text, tt.why) || !fixOf(tt.why).MatchString(f.Fix) {
				t.Errorf("finding: %+v, want a failure that says it, with the fix %q", f, fixOf(tt.why))
			}
		})
	}
}

// fixOf is what to do for what is kept. None ends or removes what it is kept for, as containerd does when it starts.
func fixOf(why string) *regexp.Regexp {
	for part, fix := range map[string]string{
		"is mounted there":             "^umount -- /run/containerd/[a-z0-9/.-]+ first, then run this again$",
		"which containers its shim":    "shim.pod.json, .* and fix it, then run this again$",
		"which is no bundle":           "shim.pod.json, .* and fix it, then run this again$",
		"of its pod names":             "shim.pod.json, .* and fix it, then run this again$",
		"creation was not finished":    "^when no process of the container runs: rm -r .*/c, then run this again$",
		"no cgroup of one container":   "^when no process of the container runs: rm -r .*/c, then run this again$",
		"has its cgroup":               "^when container lives in namespace default has ended, run this again$",
		"which is not the container's": "^move process [0-9]+ out of the cgroup first, then run this again$",
		"process 0":                    "^move process 0 out of the cgroup first, then run this again$",
		"older than the container":     "^move process 400 out of the cgroup or end it first, then run this again$",
		"not in a mount namespace":     "^move process 400 out of the cgroup or end it first, then run this again$",
		"pid 200":                      "^when process 200 has ended, run this again$",
		"pid 400":                      "^when process 400 has ended, run this again$",
		"is not below":                 "^remove the bundle of its pod, then run this again$",
		"processes its cgroups have":   "^when no process of the container runs: rm -r .*/c, then run this again$",
		"names no cgroup":              "^when no process of the container runs: rm -r .*/c, then run this again$",
		"its state cannot be read":     "^when no process of the container runs: rm -r .*/c, then run this again$",
		"pid 300":                      "^when process 300 has ended, run this again$",
		"the shim of lives lives":      "^when the shim of lives has ended, run this again$",
		"has none of it":               "^when who made .*/c has removed it, run this again$",
		"processes of containers":      "^kill -TERM 300$",
		"containerd still knows":       "task rm -f c$",
	} {
		if strings.Contains(why, part) {
			return regexp.MustCompile(fix)
		}
	}
	return regexp.MustCompile("^no fix is known$")
}

// Somebody has removed all files of a bundle, and the container runs.
func TestKeep_ABareBundle(t *testing.T) {
	for mounted, why := range map[string]string{"rootfs": "", "volume": "is mounted there, and not by a shim"} {
		x := newTree(t)
		x.must(os.MkdirAll(x.path(task+"default/c/"+mounted), 0o711))
		x.mountLine("default/c/" + mounted)
		x.lost("400")
		x.process(400, 1, 7, 60)
		r := Examine(t.Context(), x.config())
		if len(r.Leftovers) != 2 || r.Leftovers[0].Kind != leftover.Mounts || r.Leftovers[1].Kind != leftover.States {
			t.Fatalf("%s: leftovers: %+v, want a mount and a state", mounted, r.Leftovers)
		}
		if n := r.Leftovers[0].Target.Processes; n != 1 {
			t.Errorf("%s: %d processes may use the mount, want 1", mounted, n)
		}
		for _, l := range r.Leftovers {
			if (l.Keep == "") != (why == "") || !strings.Contains(l.Keep, why) {
				t.Errorf("%s: %s is kept for %q, want %q", mounted, l.Kind, l.Keep, why)
			}
		}
	}
}

// A container that lives may have any number of processes.
func TestKeep_ListsNoProcessesOfWhatIsWanted(t *testing.T) {
	x := newTree(t)
	x.remove("sys/fs/cgroup/default/lives/cgroup.procs")
	x.must(unix.Mkfifo(x.path("sys/fs/cgroup/default/lives/cgroup.procs"), 0o600))
	examined := make(chan Report, 1)
	go func() { examined <- Examine(x.Context(), x.config()) }()
	select {
	case r := <-examined:
		if len(r.Leftovers) > 0 {
			t.Errorf("leftovers: %+v, want none", r.Leftovers)
		}
	case <-time.After(time.Minute):
		t.Fatal("the processes of a container that lives are listed")
	}
}

// A directory that is a symbolic link has no state directories of this machine in it.
func TestKeep_NamespacesThatAreLinks(t *testing.T) {
	x := newTree(t)
	x.lost("")
	x.must(os.Rename(x.path(stateDir+"default"), x.path("elsewhere")))
	x.link(x.path("elsewhere"), stateDir+"default")
	if r := Examine(t.Context(), x.config()); len(r.Leftovers) > 0 {
		t.Errorf("leftovers: %+v, want none", r.Leftovers)
	}
}

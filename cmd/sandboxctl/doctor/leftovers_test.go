// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"
)

const (
	pods     = "run/containerd/io.containerd.sandbox.controller.v1.shim/"
	address2 = `{"version": 3, "protocol": "ttrpc", "address": "unix:///` + socketDir + `c"}`
)

// What somebody has, or may have, is no leftover.
func TestLeftovers_NothingThatIsWanted(t *testing.T) {
	for _, tt := range []struct {
		what    string
		do      func(x *tree)
		caution string // why it is reported all the same; empty: it is not
	}{
		{"a shim that listens", func(x *tree) { x.bundle("c"); x.listen(socketDir+"c", true) }, ""},
		{"a shim that has no socket so far", func(x *tree) { x.bundle("c"); x.orphan("c") }, ""},
		{"a bundle without an address", func(x *tree) { x.bundle("c"); x.remove(task + "default/c/address") }, ""},
		{"a bundle with an address that is no socket", func(x *tree) { x.bundle("c"); x.write(task+"default/c/address", "vsock://1:2") }, ""},
		{"a container in a pod of the Sandbox API", func(x *tree) {
			x.write(task+"default/c/bootstrap.json", address2)
			x.write(task+"default/c/sandbox", "pod")
			x.write(task+"default/c/shim.home", "")
			x.write(pods+"default/pod/bootstrap.json", address2)
			x.write(pods+"default/pod/shim-binary-path", "/usr/bin/"+program)
			x.listen(socketDir+"c", true)
			x.orphan("pod")
		}, ""},
		{"a shim of a pod that has only containers left", func(x *tree) {
			x.write(task+"default/c/bootstrap.json", address2)
			x.listen(socketDir+"c", true)
			x.orphan("pod")
			x.listens("c")
		}, ""},
		{"a bundle of another runtime", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim-binary-path", "/usr/bin/containerd-shim-runc-v2")
			x.mountLine("default/c/rootfs")
		}, ""},
		{"a dead shim of a container that containerd knows", func(x *tree) {
			x.bundle("c")
			x.known["default"]["c"] = true
		}, "containerd still knows the container"},
		{"a dead shim of a pod of which containerd knows a container", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim.pod.json", `{"ID": "c", "Members": {"other": {}}}`)
			x.known["default"]["other"] = true
		}, "others of its pod"},
		{"the same, told by another bundle of the pod", func(x *tree) {
			x.bundle("c")
			x.bundle("d")
			x.write(task+"default/c/shim.pod.json", `{"ID": "c", "Members": {"d": {}}}`)
			x.link(x.path(task+"default/c"), task+"default/d/shim.home")
			x.known["default"]["c"] = true
		}, "containerd still knows"},
		{"a dead shim, and nobody says which containers there are", func(x *tree) { x.bundle("c"); x.silent = true }, "does not answer"},
		{"a socket on which somebody listens", func(x *tree) { x.listen(socketDir+"s", true); x.old(socketDir + "s") }, ""},
		{"a socket that was made just now", func(x *tree) { x.listen(socketDir+"s", false) }, ""},
		{"a file that is no socket", func(x *tree) { x.write(socketDir+"s", ""); x.old(socketDir + "s") }, ""},
		{"a mount of a container that containerd knows", func(x *tree) {
			x.mountLine("default/c/rootfs")
			x.known["default"]["c"] = true
		}, ""},
		{"a cgroup of which nothing says whose it is", func(x *tree) { x.write("sys/fs/cgroup/default/c/cgroup.procs", "") }, ""},
		{"a state directory of a container that containerd knows", func(x *tree) { x.stateOf("c", ""); x.known["default"]["c"] = true }, ""},
		{"a state directory of another containerd", func(x *tree) {
			x.write(stateDir+"default/c/state.json", strings.ReplaceAll(x.state("c"), "/run/containerd/io", "/run/other/io"))
		}, ""},
		{"a shim of another containerd", func(x *tree) {
			x.orphan("c")
			x.replace("proc/300/cmdline", "/run/containerd/containerd.sock", "/run/other.sock")
		}, ""},
		{"a shim of a node in a container", func(x *tree) {
			x.orphan("c")
			x.remove("proc/300/ns/mnt")
			x.link("mnt:[99]", "proc/300/ns/mnt")
		}, ""},
		{"a shim whose namespaces cannot be seen", func(x *tree) { x.orphan("c"); x.remove("proc/300/ns/mnt") }, ""},
		{"a shim whose sockets cannot be seen", func(x *tree) { x.orphan("c"); x.remove("proc/300/fd") }, ""},
		{"a shim whose first container is gone, and that has another", func(x *tree) {
			x.orphan("c")
			x.bundle("d")
			x.listen(socketDir+"d", true)
			x.listens("d")
		}, ""},
		{"the same, and a socket whose name has a line for that of the shim", func(x *tree) {
			x.orphan("c")
			x.bundle("d")
			x.listen(socketDir+"d", true)
			x.listens("d")
			x.replace("proc/300/task/301/net/unix", "d\n", "d\nb: 2 0 1 1 1 4712 @x\na: 2 0 1 1 1 4711 /run/x\n")
		}, ""},
		{"the delete command", func(x *tree) {
			x.orphan("c")
			x.write("proc/300/cmdline", strings.ReplaceAll(program+" -namespace default -id c -address /run/containerd/containerd.sock -bundle /b delete", " ", "\x00"))
		}, ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			x := newTree(t)
			tt.do(x)
			r := Examine(t.Context(), x.config())
			for _, l := range r.Leftovers {
				if tt.caution == "" || !strings.Contains(l.Caution, tt.caution) {
					t.Errorf("leftover: %+v, want none but with the caution %q", l, tt.caution)
				}
			}
			if tt.caution != "" && len(r.Leftovers) == 0 {
				t.Errorf("no leftover, want one with the caution %q", tt.caution)
			}
		})
	}
}

// listens makes process 300 the one that listens on a socket.
func (x *tree) listens(socket string) {
	x.Helper()
	x.link("socket:[4711]", "proc/300/fd/5")
	x.write("proc/300/task/300/net/unix", "Num RefCount Protocol Flags Type St Inode Path\n")
	x.write("proc/300/task/301/children", "")
	x.write("proc/300/task/301/net/unix", "a: 2 0 1 1 1 4711 /"+socketDir+socket+"\n")
}

// The kernel names mount points by what symbolic links lead to, and containers by what their containerd was told.
func TestLeftovers_TheStateDirectoryIsNamedByALink(t *testing.T) {
	x := newTree(t)
	x.link("../run", "var/run")
	x.replace(configFile, `state = "/run/containerd"`, `state = "/var/run/containerd"`)
	x.bundle("dead")
	x.mountLine("default/dead/rootfs")
	x.write("sys/fs/cgroup/default/gone/cgroup.procs", "")
	x.write(stateDir+"default/gone/state.json", strings.ReplaceAll(x.state("gone"), "bundle=/run", "bundle=/var/run"))
	r := Examine(t.Context(), x.config())
	if f := r.result(t, "leftover-bundles").Findings[0]; !strings.Contains(f.Text, "its shim is dead (mounts: 1)") {
		t.Errorf("bundle: %+v, want one with its mount", f)
	}
	if f := r.result(t, "leftover-states").Findings[0]; !strings.Contains(f.Text, "default/gone") {
		t.Errorf("state: %+v, want that of gone", f)
	}
}

// So is the socket of containerd.
func TestLeftovers_TheAddressIsNamedByALink(t *testing.T) {
	x := newTree(t)
	x.link("../run", "var/run")
	x.listen("run/containerd/containerd.sock", true)
	x.orphan("c")
	config := x.config()
	config.Address = "/var/run/containerd/containerd.sock"
	if r := Examine(t.Context(), config); len(r.Leftovers) != 1 || r.Leftovers[0].Pid != 300 {
		t.Errorf("leftovers: %+v, want the shim", r.Leftovers)
	}
}

// Containers name mount points, and somebody copies the commands.
func TestLeftovers_CommandsAreQuoted(t *testing.T) {
	x := newTree(t)
	x.mountLine(`default/dead/rootfs/$(reboot)'`)
	r := Examine(t.Context(), x.config())
	want := `umount -- '/` + task + `default/dead/rootfs/$(reboot)'\'''`
	if f := r.result(t, "leftover-mounts").Findings[0]; f.Fix != want {
		t.Errorf("command: %s, want %s", f.Fix, want)
	}
}

// The name of a hidden bundle may be that of a container that was made since.
func TestLeftovers_AHiddenBundleOfAContainerThatWasMadeAnew(t *testing.T) {
	x := newTree(t)
	x.bundle(".c")
	x.known["default"]["c"] = true
	x.write(task+"default/c/config.json", "{}")
	x.write(task+"default/c/bootstrap.json", strings.ReplaceAll(address2, "s/c", "s/pod"))
	x.listen(socketDir+"pod", true)
	want := "rm -r --one-file-system -- " + x.path(task+"default/.c")
	if l := x.only(); l.Fix != want || !strings.Contains(l.Keep, "may be another") {
		t.Errorf("kept for %q, command %q, want %q", l.Keep, l.Fix, want)
	}
}

// containerd leaves alone what it has hidden.
func TestLeftovers_AHiddenBundle(t *testing.T) {
	x := newTree(t)
	x.bundle(".half")
	x.mountLine("default/.half/rootfs")
	r := Examine(t.Context(), x.config())
	want := "umount -- /" + task + "default/.half/rootfs && rm -r --one-file-system -- " + x.path(task+"default/.half")
	if f := r.result(t, "leftover-bundles").Findings[0]; f.Fix != want {
		t.Errorf("command: %s, want %s", f.Fix, want)
	}
}

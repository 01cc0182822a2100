// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
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
		what string
		do   func(x *tree)
	}{
		{"a shim that listens", func(x *tree) { x.bundle("c"); x.listen(socketDir+"c", true) }},
		{"a shim that has no socket so far", func(x *tree) { x.bundle("c"); x.orphan("c") }},
		{"a bundle without an address", func(x *tree) { x.bundle("c"); x.remove(task + "default/c/address") }},
		{"a bundle with an address that is no socket", func(x *tree) { x.bundle("c"); x.write(task+"default/c/address", "vsock://1:2") }},
		{"a container in a pod of the Sandbox API", func(x *tree) {
			x.write(task+"default/c/bootstrap.json", address2)
			x.write(task+"default/c/sandbox", "pod")
			x.write(task+"default/c/shim.home", "")
			x.write(pods+"default/pod/bootstrap.json", address2)
			x.write(pods+"default/pod/shim-binary-path", "/usr/bin/"+program)
			x.listen(socketDir+"c", true)
			x.orphan("pod")
		}},
		{"a shim of a pod that has only containers left", func(x *tree) {
			x.write(task+"default/c/bootstrap.json", address2)
			x.listen(socketDir+"c", true)
			x.shimProcess(os.Getpid(), "pod")
		}},
		{"a bundle of another runtime", func(x *tree) {
			x.bundle("c")
			x.write(task+"default/c/shim-binary-path", "/usr/bin/containerd-shim-runc-v2")
			x.mountLine("default/c/rootfs")
		}},
		{"a socket on which somebody listens", func(x *tree) { x.listen(socketDir+"s", true); x.old(socketDir + "s") }},
		{"a socket that was made just now", func(x *tree) { x.listen(socketDir+"s", false) }},
		{"a file that is no socket", func(x *tree) { x.write(socketDir+"s", ""); x.old(socketDir + "s") }},
		{"a mount of a container that containerd knows", func(x *tree) {
			x.mountLine("default/c/rootfs")
			x.knows("c")
		}},
		{"a cgroup of which nothing says whose it is", func(x *tree) { x.write("sys/fs/cgroup/default/c/cgroup.procs", "") }},
		{"a state directory of a container that containerd knows", func(x *tree) { x.stateOf("c", ""); x.knows("c") }},
		{"a state directory of another containerd", func(x *tree) {
			x.write(stateDir+"default/c/state.json", strings.ReplaceAll(x.state("c"), "/run/containerd/io", "/run/other/io"))
		}},
		{"a state directory of a container whose process has a shim", func(x *tree) {
			x.stateOf("c", "400")
			x.write("proc/400/stat", "400 (a) b) S 200"+strings.Repeat(" 0", 17)+" 60 0 0")
		}},
		{"a program of a container that has the name of a shim", func(x *tree) {
			x.orphan("c")
			x.remove("proc/300/ns/mnt")
			x.link("mnt:[7]", "proc/300/ns/mnt")
			x.withhold(300)
		}},
		{"a shim of another containerd", func(x *tree) {
			x.orphan("c")
			x.replace("proc/300/cmdline", "/run/containerd/containerd.sock", "/run/other.sock")
		}},
		{"a shim of a node in a container", func(x *tree) {
			x.orphan("c")
			x.remove("proc/300/ns/mnt")
			x.link("mnt:[99]", "proc/300/ns/mnt")
		}},
		{"a shim whose namespaces cannot be seen", func(x *tree) { x.orphan("c"); x.remove("proc/300/ns/mnt") }},
		{"a shim whose first container is gone, and that has another", func(x *tree) {
			x.shimProcess(os.Getpid(), "c")
			x.bundle("d")
			x.listen(socketDir+"d", true)
		}},
		{"the delete command", func(x *tree) {
			x.orphan("c")
			x.write("proc/300/cmdline", strings.ReplaceAll(program+" -namespace default -id c -address /run/containerd/containerd.sock -bundle /b delete", " ", "\x00"))
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			x := newTree(t)
			tt.do(x)
			r := Examine(t.Context(), x.config())
			if len(r.Leftovers) > 0 {
				t.Errorf("leftovers: %+v, want none", r.Leftovers)
			}
		})
	}
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
	if f := r.result(t, "leftover-bundles").Findings[0]; !strings.Contains(f.Text, "its shim is dead (mounts: 1") {
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

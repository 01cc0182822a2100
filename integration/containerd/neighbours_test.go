// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// reached tells what of the shim and of other containers a process reaches: first its descriptors, then its cgroup and
// how many processes it sees.
const reached = `ls -l /proc/self/fd | sed -n 's/.* -> //p' | grep -v -e '^pipe:' -e ^/dev/null -e ^/proc/ -e fifo
grep -o 'memory:.*\|^0::.*' /proc/self/cgroup | head -n 1
ls -d /proc/[0-9]* | wc -l`

// What docs/density.md says of descriptors, /proc, cgroups and seccomp.
func TestShared_WhatAContainerReachesOfAnother(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	e := newEnv(t)
	sharing := func(opts ...oci.SpecOpts) config {
		c := e.sharing(3)
		c.opts = opts
		return c
	}
	first := e.run("c0", sharing(filter(specs.ActErrno, unix.ENOSPC, nil)), "sh", "-c", reached+"; exec sleep 1000")
	second := e.run("c1", sharing(), "sh", "-c", reached+"; exec sleep 1000")
	node := e.run("c2", sharing(oci.WithHostNamespace(specs.PIDNamespace)), "sleep", "1000")
	e.wantShims(1)
	var cgroups []string
	for _, c := range []*task{first, second} {
		for _, out := range []string{c.runExec("x", "sh", "-c", reached).out.String(), c.started(3)} {
			lines := strings.Fields(out)
			if len(lines) != 2 || lines[1] > "4" || len(lines[1]) > 1 {
				t.Errorf("%s: %q, want a cgroup, and no more processes than it has", c.ID(), out)
				continue
			}
			cgroups = append(cgroups, lines[0])
		}
	}
	each := len(cgroups) == 4 && cgroups[0] == cgroups[1] && cgroups[2] == cgroups[3]
	if !each || cgroups[0] == cgroups[2] && cgroups[0] != "0::/" {
		t.Errorf("cgroups of two containers, each of an exec and of init: %q", cgroups)
	}

	first.startExec("filtered", config{}, nil, "mkdir", "/x").wantExit(1)
	second.runExec("free", "mkdir", "/x")

	// Without CAP_SYS_PTRACE, root of a container in the node's PID namespace sees that there is a shim.
	shim := e.shim("c0")
	node.runExec("sees", "test", "-d", fmt.Sprintf("/proc/%d", shim))
	for i, command := range []string{
		"readlink /proc/%d/fd/0", "cat /proc/%d/fd/0", "cat /proc/%d/environ", "ls /proc/%d/root/", "cat /proc/%d/mem", "readlink /proc/%d/ns/net",
	} {
		p := node.startExec(fmt.Sprint("reads", i), config{}, nil, "sh", "-c", "! "+fmt.Sprintf(command, shim))
		p.wantExit(0)
	}
	for _, c := range []*task{first, second, node} {
		c.kill()
	}
}

// started returns the output of a container's first process once it has so many lines.
func (t *task) started(lines int) (out string) {
	t.e.Helper()
	harness.Eventually(t.e, "output of "+t.ID(), func() error {
		if out = t.out.String(); strings.Count(out, "\n") < lines-1 {
			return fmt.Errorf("it is %q", out)
		}
		return nil
	})
	return out
}

// A container that is being created on a volume that hangs holds up nothing but itself.
func TestShared_NeighbourWithAHungVolume(t *testing.T) {
	harness.OursOnly(t, "containers that share a shim")
	needKernel(t, "/dev/fuse")
	e := newEnv(t)
	dir := filepath.Join(t.TempDir(), "hung")
	e.must(os.Mkdir(dir, 0o755), "mkdir")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // which nobody serves
	e.must(err, "open /dev/fuse")
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	e.must(unix.Mount("none", dir, "fuse", 0, options), "mount")
	server := os.NewFile(uintptr(fd), "/dev/fuse") // Go's poller does not see one that is not mounted
	defer server.Close()                           // so that nothing hangs if the test fails
	defer func() { e.must(unix.Unmount(dir, unix.MNT_DETACH), "unmount") }()

	victim := e.run("victim", e.sharing(3), "sleep", "1000")
	hung := e.sharing(3)
	hung.opts = []oci.SpecOpts{bind(filepath.Join(dir, "volume"), "/volume", "rw")}
	created := make(chan error, 1)
	go func() { // ends when the volume fails
		_, err := e.tryCreate("hung", hung, "true")
		created <- err
	}()
	shim := e.shim("victim")
	harness.Eventually(t, "a process that waits for the volume", func() error {
		for _, p := range harness.Children(shim) {
			if strings.Contains(p.String(), " D (") {
				return nil
			}
		}
		return fmt.Errorf("children of the shim: %v", harness.Children(shim))
	})
	for i := range 20 {
		victim.runExec(fmt.Sprint("x", i), "true")
	}
	e.run("other", e.sharing(3), "sleep", "1000").kill()
	e.wantShims(1)
	select {
	case err := <-created:
		t.Errorf("the container on a hung volume was not held up: %v", err)
	default:
	}
	e.must(server.Close(), "end the volume")
	if err := <-created; err == nil {
		t.Error("a container on a volume that failed was created")
	}
	victim.runExec("x", "true")
	victim.kill()
}

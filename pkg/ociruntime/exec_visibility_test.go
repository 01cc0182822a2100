// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/shim/pkg/process"
)

// own is a program that no other process of the container runs.
func (b *box) own(name string) (inside, outside string) {
	b.t.Helper()
	inside = "/opt/" + name
	outside = filepath.Join(b.config.Rootfs, inside)
	busybox, err := os.ReadFile(filepath.Join(b.config.Rootfs, "bin/busybox"))
	must(b.t, err)
	must(b.t, os.MkdirAll(filepath.Dir(outside), 0o755))
	must(b.t, os.WriteFile(outside, busybox, 0o755)) //nolint:gosec // a program is executable
	return inside, outside
}

func TestLauncher_WhatTheContainerSees(t *testing.T) {
	b := withProbe(t, func(c *process.Config) {
		inUserNamespace(c)
		must(t, os.Symlink("busybox", filepath.Join(c.Rootfs, "bin/readlink")))
	})
	program, file := b.own("true")
	run := holdAt(t, file, running)
	ended := make(chan outcome, 1)
	go func() { ended <- b.outcome(byLauncher, command(program)) }()
	pid := run.wait()

	var open []string
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, link := range links {
		target, err := os.Readlink(link)
		must(t, err)
		kind, _, _ := strings.Cut(target, ":[")
		open = append(open, filepath.Base(link)+" "+kind)
	}
	slices.Sort(open)
	if want := []string{"0 /dev/null", "1 pipe", "2 pipe", "3 socket"}; !slices.Equal(open, want) {
		t.Errorf("the launcher has %q open in the container, want %q", open, want)
	}

	ids := status(t, pid, "NSpid")
	inside := ids[len(ids)-1]
	for _, link := range []string{"exe", "cwd", "root", "fd/3", "ns/mnt"} {
		got := b.outcome(byLibcontainer, command("readlink", "/proc/"+inside+"/"+link))
		if got.Err != "" || got.Status != 1 || got.Stdout[0] != "" {
			t.Errorf("the container's root reads %s of the launcher: %+v, want a refusal", link, got)
		}
	}
	run.letGo()
	if got := <-ended; got.Status != 0 || got.Err != "" {
		t.Errorf("exec = %+v, want success", got)
	}
}

// What the shim ignores a process of a container does not: the Go runtime of libcontainer's first stage sees to that.
// It leaves SIGHUP and SIGINT as they are, which are not tried, since Go cannot end that it ignores them.
func TestExec_WithSignalsThatTheShimIgnores(t *testing.T) {
	ignored := []os.Signal{syscall.SIGUSR1, syscall.SIGPIPE}
	signal.Ignore(ignored...)
	t.Cleanup(func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, ignored...) // Reset leaves them ignored in the kernel
		signal.Stop(c)
	})
	b := withProbe(t, nil)
	if got := b.wantSame(probed(nil)); got.Status != 7 {
		t.Errorf("libcontainer: %+v, want the probe's status 7", got)
	}
}

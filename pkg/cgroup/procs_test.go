// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestContains_TellsMembersFromOthers(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c, other := makeCgroup(t), makeCgroup(t)
			nested := nest(t, c, "nested")
			for _, in := range []*Cgroup{c, nested, other} {
				p := start(t, in, "read x")
				pidfd, err := unix.PidfdOpen(p.Process.Pid, 0)
				testx.Must(t, err)
				defer unix.Close(pidfd)
				for _, fd := range []int{pidfd, -1} {
					err := c.Contains(p.Process.Pid, fd)
					if in == other && !errdefs.IsPermissionDenied(err) || in != other && err != nil {
						t.Errorf("Contains of a process in %s by pidfd %d = %v", in, fd, err)
					}
				}
				kill(t, in)
				<-p.ended
				// A pidfd made before the end tells where that was (Linux 6.15 and later).
				_, kept := lastCgroup(pidfd)
				err = c.Contains(p.Process.Pid, pidfd)
				if told := kept && c.paths[""] != "" && in != other; told && err != nil || !told && !errdefs.IsNotFound(err) {
					t.Errorf("Contains of a process that was in %s = %v; the kernel kept its cgroup: %t", in, err, kept)
				}
				if err := c.Contains(p.Process.Pid, -1); !errdefs.IsNotFound(err) {
					t.Errorf("Contains of a pid that is free = %v, want not found", err)
				}
			}
		})
	}
}

func TestRefuseProcesses(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			nested := nest(t, c, "nested")
			if err := c.RefuseProcesses(); err != nil {
				t.Errorf("without processes: %v", err)
			}
			p := start(t, nested, "read x")
			err := c.RefuseProcesses()
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), strconv.Itoa(p.Process.Pid)) {
				t.Errorf("with a process: %v, want failed precondition, and the process", err)
			}
			kill(t, nested)
			p.signalled(t)
		})
	}
}

// Without descriptors nothing is known of a process: that is no proof that it has ended.
func TestContains_AnyErrorIsNotTheEnd(t *testing.T) {
	c := New(map[string]string{"": t.TempDir()})
	var limit unix.Rlimit
	testx.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	testx.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	got := c.Contains(unix.Getpid(), -1)
	testx.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(got, unix.EMFILE) || errdefs.IsNotFound(got) {
		t.Errorf("Contains = %v, want %v, and not that the process has ended", got, unix.EMFILE)
	}
}

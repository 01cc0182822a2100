// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// epollFull makes the kernel answer as it does when fs.epoll.max_user_watches is used up, to all threads from now on.
func epollFull(t *testing.T) {
	t.Helper()
	const load, equals = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	const end = unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load}, // struct seccomp_data begins with the number of the call
		{Code: equals, K: unix.SYS_EPOLL_CTL, Jf: 1},
		{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSPC)},
		{Code: end, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		t.Fatalf("seccomp: %v", errno)
	}
}

func TestOOMWatch_WithoutRoomForItSaysSoAndStillCounts(t *testing.T) {
	if os.Getenv("SHIM_TEST_EPOLL") == "" { // what epollFull does cannot be undone
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "SHIM_TEST_EPOLL=full")
		out, err := cmd.CombinedOutput()
		if n := strings.Count(string(out), "fs.epoll.max_user_watches"); n != 1 || err != nil {
			t.Errorf("%v, and %d lines about the lack of room, want 1:\n%s", err, n, out)
		}
		return
	}
	c := makeMemory(t)
	watched := filepath.Join(t.TempDir(), "watched")
	p := start(t, c, "until [ -e "+watched+" ]; do sleep 0.01; done; "+hog) // before, since package exec polls pipes
	watch(t, c)
	epollFull(t)
	w, reports := watch(t, c)
	testx.Write(t, watched, "")
	p.wait(t)
	w.Check() // as when a process of a container has ended
	if got := reports.Load(); got != 1 {
		t.Errorf("%d reports, want 1", got)
	}
}

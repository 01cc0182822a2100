// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package seccomp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/seccomp"
)

const (
	capturesEnv = "LAUNCH_TEST_CAPTURES" // makes the test binary a program that captures as many filters
	busyEnv     = "LAUNCH_TEST_BUSY"     // makes that collect garbage all the time
)

// A process of its own is used, because no timer runs in one whose runtime waits to stop the world.
func TestCapture(t *testing.T) {
	for name, env := range map[string][]string{
		"in a busy process":        {capturesEnv + "=200", busyEnv + "=1", "GOMAXPROCS=2"},
		"with one processor":       {capturesEnv + "=20", "GOMAXPROCS=1"}, // begins on the first thread
		"with one, which is taken": {capturesEnv + "=20", busyEnv + "=1", "GOMAXPROCS=1"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), env...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("captures = %v\n%s", errors.Join(err, ctx.Err()), out)
			}
		})
	}
}

// There is a descriptor to wait with, and none for the listener.
func TestCapture_AtTheLimitOfDescriptorsMayBeTriedAgain(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free) // it says which descriptor is next
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free) + 1, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_, err = seccomp.Capture(func() error { return nil })
	if undo := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); undo != nil {
		t.Fatal(undo)
	}
	if !errors.Is(err, unix.EMFILE) || errdefs.IsNotImplemented(err) {
		t.Errorf("error = %v, want %v alone", err, unix.EMFILE)
	}
}

func TestMain(m *testing.M) {
	n, err := strconv.Atoi(os.Getenv(capturesEnv))
	if err != nil {
		os.Exit(m.Run())
	}
	if os.Getenv(busyEnv) != "" {
		go func() { // ends with the process, as the next does
			for {
				runtime.GC()
			}
		}()
		go func() {
			for { //nolint:staticcheck // it is to take a processor
			}
		}()
	}
	for range n {
		if err := capture(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// capture loads a filter as libcontainer loads one with flags (patchbpf/enosys_linux.go), and compares.
func capture() error {
	const flags = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	want := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
	}
	got, err := seccomp.Capture(func() error {
		prog := unix.SockFprog{Len: uint16(len(want)), Filter: &want[0]}
		_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
			uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(want))
	n, err := binary.Decode(got.Program, binary.NativeEndian, program)
	if err != nil || got.Flags != flags || n != len(got.Program) || !slices.Equal(program, want) {
		return fmt.Errorf("Capture = %#x, %v, want %#x, %v", got.Flags, got.Program, flags, want)
	}
	return nil
}

func TestFilter_BlocksInit(t *testing.T) {
	for call, want := range map[uint32]bool{
		unix.SYS_MKDIRAT: false, unix.SYS_WAIT4: true, unix.SYS_RT_SIGTIMEDWAIT: true, unix.SYS_CLONE: true, unix.SYS_IOCTL: true,
		unix.SYS_EXECVEAT: true, unix.SYS_PRCTL: true,
	} {
		program := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		}
		filter, err := seccomp.Capture(func() error {
			prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
			_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
			if errno != 0 {
				return errno
			}
			return nil
		})
		if err != nil || filter.BlocksInit != want {
			t.Errorf("a filter without system call %d: %v, %v, want that it blocks an init: %t", call, filter, err, want)
		}
	}
}

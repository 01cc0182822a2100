// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// holderArg makes this binary a process that keeps the lock of the pipe which is its stdout, or with sizeArg that of the
// size of the terminal, until it is killed. It says so on stderr, or why it cannot.
const (
	holderArg = "hold"
	sizeArg   = "the-size"
)

func runAsHolder() {
	time.AfterFunc(2*patience, func() { os.Exit(1) }) // should nobody kill it
	begin := func(mem []byte) { _, _ = unix.Write(1, mem) }
	if len(os.Args) > 2 && os.Args[2] == sizeArg {
		begin = func(mem []byte) {
			second := uintptr(unsafe.Pointer(&mem[os.Getpagesize()]))
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, 1, unix.TIOCGWINSZ, second)
		}
	}
	uffd, err := holdMemory(begin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(uffd), Events: unix.POLLIN}}, -1); err != nil { // until it faults
		fmt.Fprintln(os.Stderr, "poll:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "held")
	select {}
}

// holdMemory begins to use two pages, of which the second never comes (userfaultfd(2)).
func holdMemory(begin func(mem []byte)) (uffd int, err error) {
	const (
		api, apiVersion          = 0xc018aa3f, 0xaa // UFFDIO_API, UFFD_API
		register, registerAbsent = 0xc020aa00, 1    // UFFDIO_REGISTER, UFFDIO_REGISTER_MODE_MISSING
	)
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return -1, fmt.Errorf("mmap: %w", err)
	}
	copy(mem, "first")
	fault, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if e != 0 {
		return -1, fmt.Errorf("userfaultfd: %w", e)
	}
	version := [3]uint64{apiVersion}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fault, api, uintptr(unsafe.Pointer(&version))); e != 0 {
		return -1, fmt.Errorf("UFFDIO_API: %w", e)
	}
	second := [4]uint64{uint64(uintptr(unsafe.Pointer(&mem[page]))), uint64(page), registerAbsent}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fault, register, uintptr(unsafe.Pointer(&second))); e != 0 {
		return -1, fmt.Errorf("UFFDIO_REGISTER: %w", e)
	}
	go begin(mem) // ends with the process
	return int(fault), nil
}

// hold starts a process that keeps the lock of the pipe which ends in stdout, or of what else args say. release kills it.
func hold(t *testing.T, stdout *os.File, args ...string) (release func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{holderArg}, args...)...)
	cmd.Stdout = stdout
	told, err := cmd.StderrPipe()
	testx.Must(t, err)
	testx.Must(t, cmd.Start())
	release = func() {
		_ = cmd.Process.Kill() // again is no harm
		_ = cmd.Wait()
	}
	t.Cleanup(release)
	line, err := bufio.NewReader(told).ReadString('\n')
	switch {
	case strings.HasPrefix(line, "userfaultfd:"):
		lacking(t, "userfaultfd", "userfaultfd(2) for faults in the kernel, got "+line)
	case line != "held\n":
		t.Fatalf("the process that is to hold the pipe: %q, %v", line, err)
	}
	return release
}

// lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func lacking(tb testing.TB, name, what string) {
	tb.Helper()
	if slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), name) {
		tb.Fatalf("needs %s, which SHIM_TEST_REQUIRE=%s promises", what, os.Getenv("SHIM_TEST_REQUIRE"))
	}
	tb.Skipf("SKIPPED: needs %s (add %q to SHIM_TEST_REQUIRE to make this a failure)", what, name)
}

// A process that an exec left behind, say, can make the kernel wait for its memory with the pipe locked.
func TestStreams_DoNotWaitForAWriterThatKeepsThePipeLocked(t *testing.T) {
	for _, tc := range []struct {
		name         string
		before, anew bool
	}{
		{name: "before the copying", before: true},
		{name: "before the copying, by a descriptor of its own", before: true, anew: true},
		{name: "while the copier sleeps"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newEnv(t, false, "stdout", "stderr")
			r.client("stdout")
			stderr, stdout := r.client("stderr"), r.process()
			_, _, end := r.Child()
			other, err := unix.FcntlInt(end.Fd(), unix.F_DUPFD_CLOEXEC, 3) // keeps stderr from ending
			testx.Must(t, err)
			defer func() { _ = unix.Close(other) }()
			if _, err := unix.Write(other, []byte("other")); err != nil {
				t.Fatal(err)
			}
			if !tc.before {
				r.started()
				testx.Eventually(t, "the copiers sleep", asleep(2))
			}
			if tc.anew {
				given := stdout
				stdout, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", given.Fd()), os.O_WRONLY, 0)
				testx.Must(t, err)
				given.Close()
			}
			release := hold(t, stdout)
			stdout.Close()
			if tc.before {
				within(t, "Started", r.started)
			}

			within(t, "DrainMayStop", func() {
				if r.DrainMayStop(true) {
					t.Error("DrainMayStop, although nobody knows what is in the pipe")
				}
			})
			wantDrainError(t, r.Streams, "drain stdout: N bytes and what is in the pipe are not handed on: "+
				context.DeadlineExceeded.Error())
			within(t, "Written", func() {
				if got := r.Written(); got != [2]Output{{}, {Written: 5}} {
					t.Errorf("Written() = %v, want what was read of stdout, and all of stderr", got)
				}
			})
			within(t, "Close", func() { _ = r.Close() })
			wantRest(t, stderr, "other") // the other stream is closed

			release()
			within(t, "joining the rest", func() { r.copying.Wait() })
		})
	}
}

// A process that has the terminal can keep its size locked. Neither its size nor its end is waited for.
func TestResize_DoesNotWaitForAProcessThatKeepsTheSizeLocked(t *testing.T) {
	r := newEnv(t, true, "stdout")
	r.client("stdout")
	slave := openSlave(t, r.attach())
	r.started()
	release := hold(t, slave, sizeArg)
	within(t, "Resize, twice", func() {
		for range 2 {
			if err := r.Resize(80, 25); !errdefs.IsUnavailable(err) {
				t.Errorf("Resize = %v, want %v", err, errdefs.ErrUnavailable)
			}
		}
	})
	within(t, "Close", func() { _ = r.Close() })
	release()
	within(t, "joining the rest", func() { r.copying.Wait() })
	within(t, "the end of the call", func() { r.resizing.Lock() })
}

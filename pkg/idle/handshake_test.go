// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// CVE-2020-15257: a process of another user reaches the socket of the shim, as if its mode let it.
func TestHandshake_RefusesAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, to become another user")
	}
	dir, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	testx.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // nothing depends on it
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	testx.Must(t, err)
	defer l.Close()
	for _, name := range []string{dir, path} {
		if err := os.Chmod(name, 0o777); err != nil { //nolint:gosec // the modes are not what is tested
			t.Fatal(err)
		}
	}
	tr := newTracker(Config{})
	defer tr.Stop()
	for _, uid := range []int{0, 65534} {
		connected := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // which ends with the goroutine: its user is another
			connected <- connectAs(uid, path)
		}()
		conn, err := l.Accept()
		testx.Must(t, err)
		_, _, err = tr.Handshake(t.Context(), conn)
		if want := uid == os.Getuid(); (err == nil) != want {
			t.Errorf("handshake with user %d = %v, want success: %t", uid, err, want)
		}
		_ = conn.Close() // refused ones are closed
		testx.Must(t, <-connected)
	}
}

// connectAs connects with the user of this thread alone, which unix.Setresuid would give to all.
func connectAs(uid int, path string) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), ^uintptr(0)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
}

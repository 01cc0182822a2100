// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// fill writes to the fifo until it takes no more.
func fill(t *testing.T, fd int) {
	t.Helper()
	block := []byte(strings.Repeat("x", 4096))
	for len(block) > 0 {
		if _, err := unix.Write(fd, block); errors.Is(err, unix.EAGAIN) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// drain reads what the fifo holds.
func drain(t *testing.T, fd int) string {
	t.Helper()
	var all strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) || n == 0 {
			return all.String()
		}
		testx.Must(t, err)
		all.Write(buf[:n])
	}
}

func TestLog_NeverBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	testx.Must(t, unix.Mkfifo(path, 0o700))
	fd := openFifo(path)                  // with no reader there yet
	defer func() { _ = unix.Close(fd) }() // open for the test's length
	write := func(line string) {
		t.Helper()
		if n, err := logFifo(fd).Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("Write = %d, %v, want success", n, err)
		}
	}
	write("one\n")
	fill(t, fd)
	write("two\n")
	if got := strings.ReplaceAll(drain(t, fd), "x", ""); got != "one\n" {
		t.Errorf("the full fifo held %q, want %q", got, "one\n")
	}
	write("three\n")
	if got := drain(t, fd); got != "three\n" {
		t.Errorf("after draining the log reads %q, want %q", got, "three\n")
	}
}

func TestLog_TakesFifosOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if fd := openFifo(path); fd != -1 {
		t.Errorf("openFifo without a log = %d, want -1", fd)
	}
	testx.Must(t, unix.Mknod(path, unix.S_IFREG|0o600, 0))
	if fd := openFifo(path); fd != -1 {
		t.Errorf("openFifo of a regular file = %d, want -1", fd)
	}
}

// containerd's log has the lines of all shims.
func TestLog_NamesTheShim(t *testing.T) {
	dir, before := t.TempDir(), log.L
	testx.Must(t, unix.Mkfifo(filepath.Join(dir, "log"), 0o700))
	fd, err := unix.Open(filepath.Join(dir, "log"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	testx.Must(t, err)
	defer unix.Close(fd)
	defer func() { log.L = before }()
	defer logToFifo(dir, Args{ID: "web", Namespace: "ns"})()
	log.L.WithField("container", "c1").Info("said")
	if got := drain(t, fd); !strings.Contains(got, " id=web ") || !strings.HasSuffix(got, " namespace=ns\n") {
		t.Errorf("log = %q, want the shim's id and namespace in it", got)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func ownHash(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	must(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// CVE-2019-5736: while the first stage of a process runs our program, the
// container can reach it by /proc/PID/exe, and keep it open until nobody runs it.
func TestInit_CannotReachOurExecutable(t *testing.T) {
	before := ownHash(t)
	var own unix.Stat_t
	must(t, unix.Stat("/proc/self/exe", &own))

	b := create(t, newConfig(t, "sleep", "1000"))
	exe := fmt.Sprintf("/proc/%d/exe", b.Init().Pid())
	var theirs unix.Stat_t
	must(t, unix.Stat(exe, &theirs))
	if own.Dev == theirs.Dev && own.Ino == theirs.Ino {
		t.Fatalf("the first stage runs our own file, %s", exe)
	}
	kept, err := os.Open(exe)
	must(t, err)
	defer kept.Close()

	// The same from inside: a shell keeps the program of process 1 open.
	done := make(chan result, 1)
	script := "exec 3</proc/1/exe && : > /tmp/open; while [ ! -e /tmp/go ]; do sleep 0.01; done; (echo evil > /proc/self/fd/3) && echo written; (echo evil >> /proc/self/fd/3) && echo appended; echo end"
	go func() { done <- b.exec(t.Context(), command("sh", "-c", script)) }()
	eventually(t, "the shell", func() bool { _, err := os.Stat(filepath.Join(b.config.Rootfs, "tmp/open")); return err == nil })

	b.start()
	eventually(t, "the program", func() bool {
		target, err := os.Readlink(exe)
		return err == nil && target == "/bin/busybox"
	})
	must(t, os.WriteFile(filepath.Join(b.config.Rootfs, "tmp/go"), nil, 0o600))
	if got, want := <-done, (result{0, "end\n", nil}); got != want {
		t.Errorf("the shell in the container = %+v, want %+v", got, want)
	}
	for _, flag := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND} {
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", kept.Fd()), flag, 0)
		if err != nil {
			continue
		}
		if n, err := f.WriteString("evil"); err == nil {
			t.Errorf("wrote %d bytes into what the first stage ran, opened with %#x", n, flag)
		}
		_ = f.Close() // only the write matters
	}
	if after := ownHash(t); after != before {
		t.Errorf("our executable changed from %s to %s", before, after)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
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

// A container that takes away the permission to execute the file of the launcher, by an ACL, would have libcontainer
// start all processes of its pod. Root of a container owns the file, and reaches it in a held init and in its own init.
func TestLauncher_NoContainerChangesItsFile(t *testing.T) {
	held := create(t, newConfig(t, "sleep", "1000"))
	acl := []byte{2, 0, 0, 0} // POSIX_ACL_XATTR_VERSION
	for _, tag := range []byte{0x01, 0x04, 0x20} {
		const read = 4
		acl = append(acl, tag, 0, read, 0, 0xff, 0xff, 0xff, 0xff)
	}
	const script = `for c in "chmod 0" "chown 1" touch "truncate -s 0"; do busybox $c /proc/1/exe 2>&1; done`
	for name, b := range map[string]*box{"launcher": held, "init": create(t, reapedConfig(t, "sleep", "1000")).start()} {
		exe := fmt.Sprintf("/proc/%d/exe", b.Init().Pid())
		if link, err := os.Readlink(exe); err != nil || link != "/containerd-shim-sandbox-v1:"+name {
			t.Fatalf("%s = %q, %v, want the %s", exe, link, err, name)
		}
		for attribute, value := range map[string][]byte{"system.posix_acl_access": acl, "user.x": []byte("x")} {
			if err := unix.Setxattr(exe, attribute, value, 0); !errors.Is(err, unix.EROFS) {
				t.Errorf("%s: set %s: %v, want %v", name, attribute, err, unix.EROFS)
			}
		}
		got := b.exec(t.Context(), &specs.Process{Args: []string{"sh", "-c", script}, Cwd: "/", Env: []string{"PATH=/bin"}})
		if n := strings.Count(got.out, "Read-only file system"); name == "launcher" && n != 4 {
			t.Errorf("%s: the container says %+v, want 4 refusals", name, got)
		}
	}
	// As its program, the launcher is no init for who calls it so.
	if got := create(t, newConfig(t, "/proc/self/exe", "/bin/sh", "-c", "exit 7")).start().wait().Status; got != 255 {
		t.Errorf("the launcher as the program of a container ends with %d, want 255: there is no request", got)
	}
	for _, reaped := range []bool{true, false} {
		c := newConfig(t, "sleep", "1000")
		c.Options.Init = reaped
		b := create(t, c).start()
		if got := b.exec(t.Context(), command("true")); got != (result{}) {
			t.Errorf("exec in another container = %+v", got)
		}
		if l := b.RuntimeContainer.(*container).Launch(); l.Init != "launcher" || l.ExecsByLibcontainer != 0 {
			t.Errorf("another container was started so: %+v", l)
		}
	}
}

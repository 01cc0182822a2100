// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/process"
)

// criuEnv makes this binary a criu, and is the directory that its test shares
// with it.
const criuEnv = "ENGINE_TEST_CRIU"

// restoringCriu puts a criu first in PATH that restores any image as a program
// that sleeps, out of reach of who kills the members of the cgroup. Then it says
// that it is done once let is called. restored is there when the program is.
func restoringCriu(t *testing.T) (restored string, let func()) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	script := fmt.Sprintf("#!/bin/sh\nexport %s=%s GORACE=atexit_sleep_ms=0\nexec %s \"$@\"\n", criuEnv, dir, self)
	must(t, os.WriteFile(filepath.Join(dir, criu.Program), []byte(script), 0o755)) //nolint:gosec // a program is executable
	must(t, unix.Mkfifo(filepath.Join(dir, "let"), 0o600))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return filepath.Join(dir, "restored"), func() {
		f, err := os.OpenFile(filepath.Join(dir, "let"), os.O_RDWR, 0) // does not wait for a reader
		must(t, err)
		t.Cleanup(func() { must(t, f.Close()) })
	}
}

// image is a configuration of a container that is restored from an image with
// what is looked at before criu is.
func image(t *testing.T) process.Config {
	t.Helper()
	c := newConfig(t, "true")
	c.Checkpoint = t.TempDir()
	for name, content := range map[string]string{"inventory.img": "", "descriptors.json": `["","",""]`} {
		must(t, os.WriteFile(filepath.Join(c.Checkpoint, name), []byte(content), 0o600))
	}
	return c
}

// Types of requests, and of the answers to them (criu's images/rpc.proto).
const (
	criuRestore = 2
	criuNotify  = 6
	criuVersion = 10
)

// serveCriu is `criu swrk FD`: it answers requests over a socket.
func serveCriu(dir string) error {
	fd, err := strconv.Atoi(os.Args[len(os.Args)-1])
	if err != nil {
		return err
	}
	socket := os.NewFile(uintptr(fd), "criu")
	request := make([]byte, 1<<16)
	for {
		n, err := socket.Read(request)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil || n < 2 {
			return fmt.Errorf("request of %d bytes: %w", n, err)
		}
		switch request[1] { // the first field is the type
		case criuVersion:
			_, err = socket.Write(answer(criuVersion, 0x52, 4, 0x08, 3, 0x10, 20)) // version: major 3, minor 20
		case criuRestore:
			err = restoreSleeper(dir, socket)
		}
		if err != nil {
			return err
		}
	}
}

// answer is a criu_resp that tells success.
func answer(kind byte, fields ...byte) []byte { return append([]byte{0x08, kind, 0x10, 1}, fields...) }

func restoreSleeper(dir string, socket *os.File) error {
	roots := []string{"/sys/fs/cgroup/cgroup.procs"} // of v2
	if _, err := os.Stat(roots[0]); err != nil {
		roots, _ = filepath.Glob("/sys/fs/cgroup/*/cgroup.procs") // of each hierarchy; the pattern is well formed
	}
	for _, root := range roots {
		if err := os.WriteFile(root, []byte("0"), 0); err != nil {
			return err
		}
	}
	sleeper := exec.Command("/bin/busybox", "sleep", "1000") // adopted by the test when this process has ended
	sleeper.Stdin, sleeper.Stdout, sleeper.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := sleeper.Start(); err != nil {
		return err
	}
	const script = "post-restore"
	notify := binary.AppendUvarint(append([]byte{0x0a, byte(len(script))}, script+"\x10"...), uint64(sleeper.Process.Pid))
	if _, err := socket.Write(answer(criuNotify, append([]byte{0x2a, byte(len(notify))}, notify...)...)); err != nil {
		return err
	}
	if _, err := socket.Read(make([]byte, 64)); err != nil { // that it was heard
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "restored"), nil, 0o600); err != nil {
		return err
	}
	let, err := os.Open(filepath.Join(dir, "let"))
	if err != nil {
		return err
	}
	if err := let.Close(); err != nil {
		return err
	}
	_, err = socket.Write(answer(criuRestore))
	return err
}

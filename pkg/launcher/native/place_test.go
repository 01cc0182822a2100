// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/hungfs"
)

// placeEnv makes this test binary a process that has the path of its system call in a mapped file.
const placeEnv = "TEST_PATH_IN_A_FILE"

// An exec ends at its time limit also if whoever traces its launcher has taken care that its memory cannot be read.
func TestPlaceOf_DoesNotWaitForMemoryThatDoesNotCome(t *testing.T) {
	if name := os.Getenv(placeEnv); name != "" {
		waitInAPath(t, name)
		return
	}
	file := hungfs.MountFile(t, t.TempDir())
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	child.Env = append(os.Environ(), placeEnv+"="+file)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	// It ends when the file system does, which is unmounted before.
	t.Cleanup(func() { _ = child.Process.Kill(); go func() { _ = child.Wait() }() })
	var thread string
	for deadline := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		if thread = threadIn(child.Process.Pid, unix.SYS_CHDIR); thread != "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the child does not call chdir")
		}
	}
	var tid int
	if _, err := fmt.Sscan(thread, &tid); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if got, want := placeOf(tid), "chdir of an unknown path"; got != want {
		t.Errorf("placeOf = %q, want %q", got, want)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("placeOf took %v", took)
	}
}

// threadIn returns the thread of a process that is in a system call.
func threadIn(pid, call int) string {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", pid, task.Name()))
		if strings.HasPrefix(string(text), fmt.Sprintf("%d ", call)) {
			return task.Name()
		}
	}
	return ""
}

func waitInAPath(t *testing.T, name string) {
	t.Helper()
	fd, err := unix.Open(name, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(unsafe.SliceData(memory))), 0, 0)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

// #include <sys/syscall.h>
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// pathCalls are the system calls of the program that a file system of the container can block, with the index of the
// argument that is the path.
var pathCalls = map[int]struct {
	name string
	path int
}{
	C.SYS_chdir:      {"chdir", 0},
	C.SYS_open_tree:  {"open_tree", 1},
	C.SYS_openat2:    {"openat2", 1},
	C.SYS_openat:     {"openat", 1},
	C.SYS_newfstatat: {"newfstatat", 1},
	C.SYS_faccessat2: {"faccessat2", 1},
	C.SYS_execve:     {"execve", 0},
}

// placeTimeout bounds how long the path is looked for: the process may have it in memory that never arrives, such as a
// mapped file of FUSE.
const placeTimeout = 100 * time.Millisecond

// placeOf returns which system call a running process is in, with its path if it has one.
func placeOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err != nil {
		return "an unknown step"
	}
	var number int
	var args [2]uint64
	if n, err := fmt.Sscanf(string(text), "%d 0x%x 0x%x", &number, &args[0], &args[1]); n != 1+len(args) {
		return fmt.Sprintf("no system call (%s: %v)", bytes.TrimSpace(text), err)
	}
	call, ok := pathCalls[number]
	if !ok {
		return fmt.Sprintf("system call %d", number)
	}
	read := make(chan []byte, 1)
	go func() { // ends when the memory has been read
		defer close(read)
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return
		}
		text := make([]byte, 256)
		_, _ = memory.ReadAt(text, int64(args[call.path])) // what can be read
		_ = memory.Close()                                 // nothing was written
		text, _, _ = bytes.Cut(text, []byte{0})
		read <- text
	}()
	select {
	case path, ok := <-read:
		if ok {
			return fmt.Sprintf("%s %q", call.name, path)
		}
	case <-time.After(placeTimeout):
	}
	return call.name + " of an unknown path"
}

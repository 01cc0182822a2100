// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// takeSockets takes the sockets of a process, as one in a container can that sees it and may trace it.
func takeSockets(t *testing.T, pid int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	defer func() { _ = unix.Close(pidfd) }() // opened for its name only
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	must(t, err)
	taken := 0
	for _, name := range names {
		target, err := os.Readlink(filepath.Join(dir, name.Name()))
		must(t, err)
		if !strings.HasPrefix(target, "socket:") {
			continue
		}
		number, err := strconv.Atoi(name.Name())
		must(t, err)
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		taken++
	}
	if taken == 0 {
		t.Fatal("the process has no socket")
	}
}

func TestStart_EndsAlthoughAnotherKeepsTheSocketOfInit(t *testing.T) {
	for name, alive := range map[string]bool{"init lives": true, "init is dead": false} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			b := create(t, newConfig(t, "sleep", "1000"))
			takeSockets(t, b.Init().Pid())
			if !alive {
				must(t, b.Init().Signal(unix.SIGKILL))
			}
			started := make(chan struct{})
			var err error
			go func() { defer close(started); err = b.Start() }()
			within(t, "the end of Start", started)
			if alive && err != nil || !alive && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Start = %v", err)
			}
		})
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Stop stops a process by SIGSTOP, and returns when each of its threads has stopped: on a busy machine others run on
// until the one that got the signal handles it. It goes on at the end of the test.
func Stop(tb testing.TB, pid int) {
	tb.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		tb.Fatalf("stop process %d: %v", pid, err)
	}
	tb.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // it may have been killed
	Eventually(tb, fmt.Sprintf("process %d stops", pid), func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return err
		}
		if len(threads) == 0 {
			return errors.New("it has no threads")
		}
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if _, state, _ := bytes.Cut(stat, []byte(") ")); !bytes.HasPrefix(state, []byte("T")) {
				return fmt.Errorf("%s: %s", name, stat)
			}
		}
		return nil
	})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Switches counts how often the threads of a process gave up or lost a processor: whenever one wakes, it sleeps again.
func Switches(pid int) (total int, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("threads of %d: none (%w)", pid, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if _, value, ok := strings.Cut(line, "voluntary_ctxt_switches:"); ok { // also matches nonvoluntary_…
				n, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					return 0, err
				}
				total += n
			}
		}
	}
	return total, nil
}

// CheckAsleep fails the test unless the process, a program in Go, comes to rest. Go's scavenger works for some seconds
// after a load, and its sysmon looks around once a minute, so the first window in which nothing happens counts, and one
// look is allowed in it. A ticker of a second would make three.
func CheckAsleep(tb testing.TB, pid int) {
	tb.Helper()
	CheckNearlyAsleep(tb, pid, 2)
}

// CheckNearlyAsleep is CheckAsleep for a program that does something now and then: so often its threads may go to sleep
// in three seconds.
func CheckNearlyAsleep(tb testing.TB, pid, allowed int) {
	tb.Helper()
	const windows = 20 // tests of other packages may disturb some
	const window = 3 * time.Second
	woken := make([]int, 0, windows)
	for range windows {
		before, err := Switches(pid)
		if err != nil {
			tb.Fatal(err)
		}
		// A program is the clock: tests may not call time.Sleep.
		if err := exec.CommandContext(tb.Context(), "sleep", fmt.Sprint(window.Seconds())).Run(); err != nil {
			tb.Fatal(err)
		}
		after, err := Switches(pid)
		if err != nil {
			tb.Fatal(err)
		}
		woken = append(woken, after-before)
		if after-before <= allowed {
			break
		}
	}
	tb.Logf("threads of %d went to sleep so often in %v: %v", pid, window, woken)
	if woken[len(woken)-1] > allowed {
		tb.Errorf("threads of %d went to sleep so often in %v: %v, want %d at most at last", pid, window,
			woken, allowed)
	}
}

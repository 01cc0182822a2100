// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// switches counts how often the threads of a process gave up or lost a processor: whenever one wakes, it sleeps again.
func switches(pid int) (total int, err error) {
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

func TestAShimWithIdleContainersDoesNotWakeUp(t *testing.T) {
	harness.OursOnly(t, "an idle shim that does not wake up")
	e := newEnv(t)
	_, pipe := typed(e)
	_, terminal := typed(e)
	a := e.create("a", config{opts: with(inOneShim), stdin: pipe}, "cat")
	b := e.create("b", config{opts: with(inOneShim), stdin: terminal, terminal: true}, "cat")
	for _, c := range []*task{a, b} {
		e.must(c.process.Start(e.ctx), "start")
	}
	shims := harness.Shims(e.namespace, "")
	if len(shims) != 1 {
		t.Fatalf("shims = %v, want one for both containers", shims)
	}
	// The clock is a container of a shim of its own. Go's scavenger works for some seconds after a load, and its sysmon
	// looks around once a minute, so the first window in which nothing happens counts, and one look is allowed in it. A
	// ticker of a second would make three.
	const windows, allowed = 5, 2
	woken := make([]int, 0, windows)
	for i := range windows {
		before, err := switches(shims[0].Pid)
		e.must(err, "look")
		began := time.Now()
		e.run(fmt.Sprintf("clock%d", i), config{}, "sleep", "3").wantExit(0)
		after, err := switches(shims[0].Pid)
		e.must(err, "look")
		if took := time.Since(began); took < 3*time.Second {
			t.Fatalf("the clock ran %v, want 3s", took)
		}
		woken = append(woken, after-before)
		if after-before <= allowed {
			break
		}
	}
	t.Logf("threads of the shim went to sleep so often in 3s: %v", woken)
	if woken[len(woken)-1] > allowed {
		t.Errorf("threads of the shim went to sleep so often in 3s: %v, want %d at most at last", woken, allowed)
	}
	a.kill()
	b.kill()
}

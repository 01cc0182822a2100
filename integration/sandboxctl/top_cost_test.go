// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// TestTop_Cost prints what "sandboxctl top" costs a node at one look per second: CPU time of itself, of containerd and
// of all shims, in percent of one CPU, beside what these use without it. SHIM_TOP_COST is the number of containers
// (`make top-cost`: 100). It then measures for longer than two minutes, after which all shims are asked again.
func TestTop_Cost(t *testing.T) {
	containers, duration, before := 3, 3*time.Second, 3*time.Second
	if text := os.Getenv("SHIM_TOP_COST"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		containers, duration, before = n, 130*time.Second, 30*time.Second
	}
	p := newPatient(t, nil)
	for i := range containers {
		p.start(fmt.Sprintf("c%03d", i), harness.Ours, sleeping())
	}
	var shims []int
	for _, s := range harness.Shims(p.namespace, "") {
		shims = append(shims, s.Pid)
	}
	if len(shims) != containers {
		t.Fatalf("%d shims, want %d", len(shims), containers)
	}
	quiet := p.usage(before, []int{p.Pid()}, shims)
	x := p.top()
	x.waitText(fmt.Sprint("containers: ", containers))
	x.wait("the second look, with what the machine used since the first", func(lines []string) bool {
		return regexp.MustCompile(`CPUs: \d+ [\d.]+%`).MatchString(lines[0])
	})
	busy := p.usage(duration, []int{p.Pid()}, shims, []int{x.cmd.Process.Pid})
	all := 0.0
	t.Logf("%d containers, each with a shim, for %v; in %% of one CPU:", containers, duration)
	for i, name := range []string{"containerd", "shims", "sandboxctl"} {
		without := 0.0
		if i < len(quiet) {
			without = quiet[i]
		}
		all += busy[i] - without
		t.Logf("  %-10s %.3f with sandboxctl top, %.3f without", name, busy[i], without)
	}
	t.Logf("  in all     %.3f more", all)
	x.press("q")
	x.wantRestored()
	if busy[2] <= 0 {
		t.Error("sandboxctl used no CPU time: this measures nothing")
	}
	const most = 1.0 // with a hundred containers
	if containers == 100 && all >= most {
		t.Errorf("it costs %.2f%% of a CPU, want less than %.0f%%", all, most)
	}
}

// usage measures for a duration how much of one CPU each group of processes uses, in percent.
func (p *patient) usage(duration time.Duration, groups ...[]int) (percent []float64) {
	p.Helper()
	begin := make([]time.Duration, len(groups))
	for i, group := range groups {
		begin[i] = cpuTime(group)
	}
	started := time.Now()
	select {
	case <-time.After(duration):
	case <-p.Context().Done():
	}
	passed := time.Since(started)
	for i, group := range groups {
		percent = append(percent, 100*float64(cpuTime(group)-begin[i])/float64(passed))
	}
	return percent
}

// cpuTime is what the threads of processes have run, to the nanosecond. The clock of /proc/PID/stat is too coarse for
// shims that sleep.
func cpuTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is right
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			ran, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.ParseInt(ran, 10, 64) // the kernel writes a number
			sum += time.Duration(ns)
		}
	}
	return sum
}

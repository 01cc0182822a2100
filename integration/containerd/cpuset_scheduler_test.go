// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// recordAffinity prints, some ten times a second, where it may run, between the times at which it began and ended to
// look. It starts no process for that.
const recordAffinity = `mkfifo /tmp/never; exec 3<>/tmp/never
while :; do
	read -r began _ </proc/uptime
	while read -r key value; do [ "$key" = Cpus_allowed_list: ] && cpus=$value; done </proc/self/status
	read -r ended _ </proc/uptime
	echo "$began $cpus $ended"
	read -r -t 0.1 _ <&3
done`

// assigned is what a source had, from begin to end, as the time since boot. While it is written it has both.
type assigned struct {
	cpus       string
	begin, end time.Duration
}

// sinceBoot is the clock of /proc/uptime.
func sinceBoot(tb testing.TB) time.Duration {
	tb.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// pool is a source with all that it had.
type pool struct {
	source
	had []assigned
}

// assign gives the pool other CPUs.
func (p *pool) assign(cpus string) {
	p.e.Helper()
	begin := sinceBoot(p.e)
	p.set(cpus)
	if n := len(p.had); n > 0 {
		p.had[n-1].end = sinceBoot(p.e)
	}
	p.had = append(p.had, assigned{control(p.e, p.dir, "cpuset.cpus"), begin, 1 << 62})
}

// late returns how long before a look the pool had what was seen for the last time, 0 if it had it then.
func (p *pool) late(cpus string, began, ended time.Duration) (time.Duration, bool) {
	for _, a := range slices.Backward(p.had) {
		if a.cpus == cpus && a.begin <= ended {
			return max(0, began-a.end), true
		}
	}
	return 0, false
}

// setting reads a number from the environment.
func setting(tb testing.TB, name string, otherwise int) int {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		tb.Fatalf("%s=%q: want a positive number", name, text)
	}
	return n
}

// A scheduler keeps two reserved pools of CPUs and a shared one, and moves CPUs between them. Each container writes
// down where it may run. SHIM_TEST_CPUSET_SECONDS and SHIM_TEST_CPUSET_CONTAINERS make it longer and larger.
func TestCPUSet_UnderAScheduler(t *testing.T) {
	moveEvery, bound := harness.Slow(100*time.Millisecond), harness.Slow(500*time.Millisecond)
	length := time.Duration(setting(t, "SHIM_TEST_CPUSET_SECONDS", 3)) * time.Second
	count := setting(t, "SHIM_TEST_CPUSET_CONTAINERS", 4)
	e := newCPUSetEnv(t)
	pools := []*pool{
		{source: source{e, e.makeCgroup("share")}},
		{source: source{e, e.makeCgroup("reserve_a")}},
		{source: source{e, e.makeCgroup("reserve_b")}},
	}
	move := func() {
		// Each has one CPU, the fourth goes to any.
		lists := [][]string{{}, {}, {}}
		for i, cpu := range rand.Perm(4) {
			to := i
			if i == len(lists) {
				to = rand.IntN(len(lists))
			}
			lists[to] = append(lists[to], strconv.Itoa(cpu))
		}
		for i, p := range pools {
			p.assign(strings.Join(lists[i], ","))
		}
	}
	move()
	tasks := make([]*task, count)
	for i := range tasks {
		// Half are in one shim.
		opts := with(pools[i%len(pools)].annotation())
		if i%2 == 0 {
			opts = append(opts, grouped("c0"))
		}
		tasks[i] = e.run("c"+strconv.Itoa(i), config{opts: opts}, "sh", "-c", recordAffinity)
		move()
	}
	tick, over := time.NewTicker(moveEvery), time.After(length)
	defer tick.Stop()
	for going := true; going; {
		select {
		case <-tick.C:
			move()
		case <-over:
			going = false
		}
	}
	var lates []time.Duration
	for _, c := range slices.Backward(tasks) { // c0 has the others' shim
		c.kill()
	}
	for i, c := range tasks {
		lates = append(lates, wantAssigned(t, c, pools[i%len(pools)], bound)...)
	}
	e.wantQuiet()
	slices.Sort(lates)
	moves := len(pools[0].had)
	if want := count * int(length/time.Second); len(lates) < want {
		t.Fatalf("%d records, want one a second and container, %d", len(lates), want)
	}
	onTime, _ := slices.BinarySearch(lates, 1)
	t.Logf("%d containers, %d moves, %d records: %d as assigned at that time, 99 %% at most %v late, all at most %v",
		count, moves, len(lates), onTime, lates[len(lates)*99/100], lates[len(lates)-1])
	if want := len(lates) * 3 / 4; onTime < want {
		t.Errorf("%d of %d records are as assigned at that time, want %d at least", onTime, len(lates), want)
	}
}

// wantAssigned checks each record of a container and returns how late they are.
func wantAssigned(tb testing.TB, c *task, p *pool, bound time.Duration) []time.Duration {
	tb.Helper()
	var lates []time.Duration
	for line := range strings.Lines(c.out.String()) {
		fields := strings.Fields(line)
		if len(fields) != 3 || !strings.HasSuffix(line, "\n") {
			continue // it was killed while it wrote
		}
		began, ended := uptime(tb, fields[0]), uptime(tb, fields[2])
		late, ok := p.late(fields[1], began, ended)
		switch {
		case !ok:
			tb.Errorf("%s at %v: runs on %s, which its source never had", c.ID(), began, fields[1])
		case late > bound:
			tb.Errorf("%s at %v: runs on %s, which its source last had %v before, want at most %v", c.ID(), began,
				fields[1], late, bound)
		}
		lates = append(lates, late)
	}
	return lates
}

// uptime reads a time of /proc/uptime, which is cut off to hundredths of a second.
func uptime(tb testing.TB, text string) time.Duration {
	tb.Helper()
	seconds, err := time.ParseDuration(text + "s")
	if err != nil {
		tb.Fatalf("time %q: %v", text, err)
	}
	return seconds
}

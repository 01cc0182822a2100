// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// measured is a program whose verdict is compared with what others know of it.
type measured struct {
	kind, script string
	limit        string // a variable and its value; empty: it ends after the test has looked at it
	ended        string // limit in the verdict
	status       int
	cpu, wall    time.Duration // at least
	least, most  int64         // of the peak of memory
	out, err     int64         // bytes; -1: not known
}

// hundredPrograms are of ten kinds, in different amounts.
func hundredPrograms() (all []measured) {
	loop := func(n int, body string) string {
		return fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s i=$((i+1)); done", n, body)
	}
	add := func(n int, one func(k int) measured) {
		for k := range n {
			all = append(all, one(k+1))
		}
	}
	add(15, func(k int) measured { return measured{kind: "spins", script: loop(10000*k, ""), status: k} })
	add(10, func(k int) measured {
		limit := time.Duration(40+15*k) * time.Millisecond
		return measured{
			kind: "spins for ever", script: strings.Repeat("("+spin+") & ", k%3) + spin, limit: fmt.Sprint("CPU_TIME=", limit),
			ended: "cpu-time", status: 137, cpu: limit, wall: limit / time.Duration(runtime.NumCPU()),
		}
	})
	add(12, func(k int) measured { return measured{kind: "forks", script: loop(4*k, "(:);"), status: k} })
	add(5, func(k int) measured {
		return measured{
			kind: "forks too often", script: loop(50, "sleep 1000 &"), limit: fmt.Sprint("PIDS=", 2*k), ended: "pids", status: 2,
			err: -1, // the shell says so
		}
	})
	add(15, func(k int) measured {
		script := fmt.Sprintf("dd if=/dev/zero of=/dev/null bs=%dM count=1 2>/dev/null", 3*k)
		return measured{kind: "allocates", script: script, status: k, least: int64(3 * k * mib), most: int64((3*k + 3) * mib)}
	})
	add(5, func(k int) measured {
		most := int64(4 * k * mib)
		return measured{
			kind: "allocates too much", script: "exec " + glutton, limit: fmt.Sprint("MEMORY=", most), ended: "memory", status: 137,
			least: most * 9 / 10, most: most,
		}
	})
	add(10, func(k int) measured {
		return measured{
			kind: "sleeps", script: fmt.Sprintf("sleep 0.%02d", 3*k), status: k, wall: time.Duration(30*k) * time.Millisecond,
		}
	})
	add(12, func(k int) measured {
		out, err := int64(37)<<k, int64(1000*k+1) // of which 64 KiB are not dropped
		return measured{
			kind: "prints", script: fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&2", out, err), status: k,
			out: out, err: err,
		}
	})
	add(6, func(k int) measured {
		out := int64(100000 * k)
		return measured{
			kind: "prints too much", script: fmt.Sprint("yes | head -c ", out), limit: fmt.Sprint("OUTPUT=", 3000*k), out: out,
		}
	})
	hangs := []string{"kill -STOP $$", "trap '' TERM INT HUP; sleep 1000", "setsid sleep 1000 & read x </sync/never"}
	add(10, func(k int) measured {
		limit := time.Duration(30+15*k) * time.Millisecond
		return measured{
			kind: "hangs", script: hangs[k%len(hangs)], limit: fmt.Sprint("WALL_TIME=", limit), ended: "wall-time", status: 137,
			wall: limit,
		}
	})
	return all
}

// truth is what the kernel told the test about a program.
type truth struct {
	cpu     time.Duration // by which that of the container's cgroup grew
	thread  time.Duration // of the first process alone; 0: not known
	peak    int64         // of its cgroup's memory while it waited at its end; 0: not known
	wall    time.Duration // at most
	arrived [2]int64      // bytes
}

// deviations are the greatest ones of a kind.
type deviations struct {
	programs      int
	cpu, thread   time.Duration
	memory, bytes int64
}

// clockTick is the unit in which the kernel may count CPU time.
const clockTick = 10 * time.Millisecond

// compare returns what of v is not as p is, and as others know.
func (d *deviations) compare(p measured, v verdict, is truth) (wrong []string) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	near := func(a, b time.Duration) bool { return (a - b).Abs() <= max(harness.Slow(clockTick), b/100) }
	check(v.Status == p.status && v.Limit == p.ended, "want status %d and limit %q", p.status, p.ended)
	check(near(v.CPU, is.cpu), "its container used %v of CPU time", is.cpu)
	if is.thread > 0 {
		check(near(v.CPU, is.thread), "it used %v of CPU time itself", is.thread)
		d.thread = max(d.thread, (v.CPU - is.thread).Abs())
	}
	check(v.CPU >= p.cpu, "want CPU time of %v", p.cpu) // TestLimit_CPUTimeIsExact has the upper bound
	check(v.Wall >= p.wall && v.Wall <= is.wall, "want a time from %v to %v", p.wall, is.wall)
	if memory := int64(v.MemoryPeak); is.peak > 0 { // what the kernel charges at a time is a batch of 64 pages
		d.memory = max(d.memory, memory-is.peak, is.peak-memory)
		check(d.memory <= 64*int64(os.Getpagesize()), "the peak of its cgroup is %d", is.peak)
	}
	if memory := int64(v.MemoryPeak); memory > 0 && p.most > 0 {
		check(memory >= p.least && memory <= p.most, "want a peak of memory from %d to %d", p.least, p.most)
	}
	for i, s := range []struct{ want, written, dropped int64 }{
		{p.out, v.Stdout.Written, v.Stdout.Dropped}, {p.err, v.Stderr.Written, v.Stderr.Dropped},
	} {
		off := s.written - s.dropped - is.arrived[i]
		if s.want >= 0 {
			off = max(off, -off, s.written-s.want, s.want-s.written)
		}
		check(off == 0, "stream %d: %d bytes of %d arrived", i+1, is.arrived[i], s.want)
		d.bytes = max(d.bytes, off, -off)
	}
	d.cpu = max(d.cpu, (v.CPU - is.cpu).Abs())
	d.programs++
	return wrong
}

// firstNumber is the first number in a file, after key if there is one; 0 without such a file.
func firstNumber(pattern, key string) (n int64) {
	files, _ := filepath.Glob(pattern)
	if len(files) == 0 {
		return 0
	}
	text, _ := os.ReadFile(files[0])
	_, after, _ := strings.Cut(string(text), key)
	_, _ = fmt.Sscan(after, &n)
	return n
}

// What the verdicts on a hundred programs say is what the kernel says to others.
func TestLimit_IsAccurateOnAHundredPrograms(t *testing.T) {
	j := newJudge(t)
	fifos := publicDir(t)
	j.must(syscall.Mkfifo(fifos+"/go", 0o644), "make a fifo")
	j.must(syscall.Mkfifo(fifos+"/never", 0o644), "make a fifo")
	c := j.run("c1", config{opts: append(with(j.limited("wall-time=20s,cpu-time=10s,memory=64Mi,pids=64,output=64Ki")),
		oci.WithMounts([]specs.Mount{{Destination: "/sync", Type: "bind", Source: fifos, Options: []string{"rbind", "ro"}}}))}, "sleep", "1000")
	unified, group := cgroups.Mode() == cgroups.Unified, "/"+j.namespace+"/c1/"
	cpuTime := func() time.Duration {
		if unified {
			return time.Duration(firstNumber("/sys/fs/cgroup"+group+"cpu.stat", "usage_usec")) * time.Microsecond
		}
		return time.Duration(firstNumber("/sys/fs/cgroup/cpuacct"+group+"cpuacct.usage", ""))
	}
	peakFile := "/sys/fs/cgroup/memory" + group + "exec-*/memory.max_usage_in_bytes"
	if unified {
		peakFile = "/sys/fs/cgroup" + group + "exec-*/memory.peak"
	}
	_, err := os.Stat("/sys/fs/cgroup" + group + "memory.peak")
	hasPeak := !unified || err == nil // since Linux 5.19
	found, kinds := map[string]*deviations{}, []string{}
	began := time.Now()
	all := hundredPrograms()
	for i, p := range all {
		id := fmt.Sprintf("x%d", i)
		var env []string
		if p.limit != "" {
			env = strings.Fields("SANDBOX_LIMIT_" + p.limit)
		} else {
			p.script += fmt.Sprintf("; read x </sync/go; exit %d", p.status)
		}
		before, asked := cpuTime(), time.Now()
		x := j.asExec(c, id, env, p.script)
		var is truth
		if p.limit == "" {
			var end *os.File
			harness.Eventually(t, id+" waits at its end", func() (err error) {
				end, err = os.OpenFile(fifos+"/go", os.O_WRONLY|syscall.O_NONBLOCK, 0) // fails while nobody reads
				return err
			})
			if is.peak = firstNumber(peakFile, ""); is.peak == 0 && hasPeak {
				t.Errorf("%s: the kernel says no peak of its memory", id)
			}
			if p.kind == "spins" {
				is.thread = time.Duration(firstNumber(fmt.Sprintf("/proc/%d/schedstat", x.Pid()), ""))
				if is.thread == 0 && firstNumber("/proc/self/schedstat", "") != 0 {
					t.Errorf("%s: the kernel says no CPU time of its thread", id)
				}
			}
			j.must(end.Close(), "let it end")
		}
		x.exit()
		is.wall = time.Since(asked)
		x.delete()
		is.cpu = cpuTime() - before
		is.arrived = [2]int64{int64(len(x.out.String())), int64(len(x.err.String()))}
		if found[p.kind] == nil {
			found[p.kind] = &deviations{}
			kinds = append(kinds, p.kind)
		}
		v := j.verdict("c1", id)
		for _, wrong := range found[p.kind].compare(p, v, is) {
			t.Errorf("%s %q: %s: %+v", p.kind, p.script, wrong, v)
		}
	}
	c.kill()
	table := fmt.Sprintf("%d programs in %v. Greatest deviations:\n", len(all), time.Since(began).Round(time.Second))
	for _, kind := range kinds {
		d := found[kind]
		table += fmt.Sprintf("%-20s %3d programs: CPU time %v, of the thread %v, memory %d, output %d\n",
			kind, d.programs, d.cpu, d.thread, d.memory, d.bytes)
	}
	t.Log(table)
}

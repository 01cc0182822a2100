// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package measure reads from the kernel what the machine, cgroups and processes use. It asks nobody else, so that what
// is measured does not pay for it.
package measure

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

// Host is the machine.
type Host struct {
	CPUs     int           `json:"cpus"`     // online
	CPU      time.Duration `json:"cpu_ns"`   // used by all, since the machine was started
	Memory   uint64        `json:"memory"`   // bytes in use: all but what is available
	Total    uint64        `json:"total"`    // bytes of memory
	Pressure Pressure      `json:"pressure"` // of the whole machine
	Cgroup   string        `json:"cgroup"`   // v1, hybrid or v2
}

// Usage is read from the cgroup of a container. A counter begins with the cgroup.
type Usage struct {
	// Cgroup is its directory, on v1 that of one controller. Empty: there is none, and nothing else is known.
	Cgroup string `json:"cgroup,omitempty"`

	CPU       time.Duration `json:"cpu_ns"`
	CPULimit  float64       `json:"cpu_limit,omitempty"` // in CPUs; 0: none
	Periods   uint64        `json:"periods"`             // of the limit, in which the container ran
	Throttled uint64        `json:"throttled_periods"`   // of these, in which it had to wait
	Waited    time.Duration `json:"throttled_ns"`

	Memory      uint64 `json:"memory"`                 // bytes, less what the kernel drops immediately (inactive files)
	MemoryLimit uint64 `json:"memory_limit,omitempty"` // bytes; 0: none
	OOMKills    uint64 `json:"oom_kills"`

	Pids      uint64 `json:"pids"` // processes and threads
	PidsLimit uint64 `json:"pids_limit,omitempty"`

	CPUs string `json:"cpus,omitempty"` // effective, as a list: 0-3,6
	Mems string `json:"mems,omitempty"`

	Pressure Pressure `json:"pressure"`
	Unknown  Unknown  `json:"unknown,omitzero"`
}

// Unknown is what the kernel does not report of a cgroup, whose numbers are 0: the controller is absent, or its file
// could not be read.
type Unknown struct {
	CPU        bool `json:"cpu,omitempty"`
	Throttling bool `json:"throttling,omitempty"` // periods
	Memory     bool `json:"memory,omitempty"`
	OOMKills   bool `json:"oom_kills,omitempty"`
	Pids       bool `json:"pids,omitempty"`
}

// Pressure is how long tasks waited for lack of something. nil: the kernel does not say, as on cgroup v1.
type Pressure struct {
	CPU    *PSI `json:"cpu,omitempty"`
	Memory *PSI `json:"memory,omitempty"`
	IO     *PSI `json:"io,omitempty"`
}

// PSI is one file of pressure stall information (the kernel's Documentation/accounting/psi.rst).
type PSI struct {
	Some10 float64 `json:"some_avg10"` // percent of the last ten seconds in which some task waited
	Full10 float64 `json:"full_avg10"` // all tasks
}

// tick is the unit of times in /proc: USER_HZ is 100 on each architecture that the shim runs on.
const tick = 10 * time.Millisecond

// ReadHost reads what the machine uses.
func ReadHost(h Hierarchies) (Host, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Host{}, err
	}
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Host{}, err
	}
	host := Host{Cgroup: h.Mode(), CPUs: max(bytes.Count(stat, []byte("\ncpu")), 1)}
	all, _, _ := strings.Cut(string(stat), "\n")
	const idle, iowait, steal = 3, 4, 7 // proc_stat(5): user nice system idle iowait irq softirq steal guest…
	for i, field := range strings.Fields(all)[1:] {
		if n, err := strconv.ParseUint(field, 10, 64); err == nil && i != idle && i != iowait && i <= steal {
			host.CPU += time.Duration(n) * tick
		}
	}
	host.Total = Field(memory, "MemTotal")
	host.Memory = less(host.Total, Field(memory, "MemAvailable"))
	host.Pressure = pressure(func(name string) []byte {
		text, _ := os.ReadFile("/proc/pressure/" + name) // a kernel may be without
		return text
	})
	return host, nil
}

// Field returns the bytes in a line of the form "Key: 12 kB" of /proc/meminfo or smaps_rollup; 0 if there is none.
func Field(text []byte, key string) uint64 {
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == key+":" {
			n, _ := strconv.ParseUint(fields[1], 10, 64) // the kernel writes a number
			return n << 10                               // kB
		}
	}
	return 0
}

// Process is what /proc/PID/stat says of a process.
type Process struct {
	Name   string
	Parent int // 0: none, or one of another PID namespace
	CPU    time.Duration
	RSS    uint64
	Starts time.Duration // after the machine
}

// ReadProcess reads what the kernel says of a process.
func ReadProcess(root machine.Root, pid int) (Process, error) {
	text, err := os.ReadFile(root.ProcFile(pid, "stat"))
	if err != nil {
		return Process{}, err
	}
	return ParseProcess(text)
}

// ParseProcess reads /proc/PID/stat. The name is in parentheses and may have any bytes in it.
func ParseProcess(text []byte) (p Process, err error) {
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	const ppid, utime, stime, starttime, rss, first = 4, 14, 15, 22, 24, 3 // proc_pid_stat(5)
	fields := strings.Fields(string(text[max(end, 0):]))
	if begin < 0 || end < begin || len(fields) <= rss-first+1 {
		return Process{}, fmt.Errorf("stat of a process: %q", text)
	}
	p.Name = strings.ToValidUTF8(string(text[begin+1:end]), "?")
	number := func(field int) uint64 {
		n, _ := strconv.ParseUint(fields[field-first+1], 10, 64) // the kernel writes a number
		return n
	}
	p.Parent = int(number(ppid))
	p.CPU = time.Duration(number(utime)+number(stime)) * tick
	p.Starts = time.Duration(number(starttime)) * tick
	p.RSS = number(rss) * uint64(os.Getpagesize())
	return p, nil
}

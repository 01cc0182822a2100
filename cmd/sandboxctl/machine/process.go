// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// PidText returns the name of a process in /proc.
func PidText(pid int) string { return strconv.Itoa(pid) }

// ProcFile returns the path of a file of a process.
func (r Root) ProcFile(pid int, name string) string { return r.Path("proc", PidText(pid), name) }

// Pids lists the processes, among them the kernel's own and those that have ended.
func (r Root) Pids() (pids []int) {
	entries, _ := os.ReadDir(r.Path("proc")) // without it other checks fail
	for _, d := range entries {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// FlagValue returns the value of a flag of a command line, with one dash or two, in the same argument or the next.
func FlagValue(args []string, names ...string) string {
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		for _, n := range names {
			if name != "-"+n && name != "--"+n {
				continue
			}
			if joined {
				return value
			}
			if i+1 < len(args) {
				return args[i+1]
			}
		}
	}
	return ""
}

// Stat is what /proc/PID/stat says of a process.
type Stat struct {
	Dead    bool   // it has ended, and its parent has not reaped it
	Parent  int    // pid; 0: none, or one of another PID namespace
	Started uint64 // in ticks of the clock since the machine began
}

// Stat reads what the kernel says of a process (proc_pid_stat(5)).
func (r Root) Stat(pid int) (s Stat, err error) {
	text, err := ReadText(r.ProcFile(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	// Fields are counted from 1. The second is the name in parentheses, which may have any bytes in it.
	const state, parent, started, first = 3, 4, 22, 3
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= started-first {
		return Stat{}, fmt.Errorf("stat of process %d: %q", pid, text)
	}
	s.Dead = strings.ContainsAny(fields[state-first], "ZXx")
	if s.Parent, err = strconv.Atoi(fields[parent-first]); err == nil {
		s.Started, err = strconv.ParseUint(fields[started-first], 10, 64)
	}
	if err != nil {
		return Stat{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	return s, nil
}

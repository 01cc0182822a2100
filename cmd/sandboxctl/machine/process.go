// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
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

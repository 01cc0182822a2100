// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "path/filepath"

// oomLimits tells on v2 whose memory limit kills were for. The kernel counts in memory.events.local how often the limit
// of that very cgroup left nothing but a kill (cgroup-v2.rst, "Memory Interface Files"; since Linux 5.3). v1 does not.
type oomLimits struct {
	dir string            // of the cgroup that is watched
	met map[string]uint64 // by cgroup, from that one upwards; and by nested for all those in it together
}

// NoOOMLimit stands for the machine: no cgroup's limit was met.
const NoOOMLimit = "the machine's memory"

func (l *oomLimits) nested() string { return filepath.Join(l.dir, "*") }

func (l *oomLimits) read() map[string]uint64 {
	met := map[string]uint64{}
	for dir := l.dir; filepath.IsAbs(dir) && dir != "/"; dir = filepath.Dir(dir) {
		if n, err := readNumber(filepath.Join(dir, "memory.events.local"), "oom"); err == nil { // the root has none
			met[dir] = n
		}
	}
	if all, err := readNumber(filepath.Join(l.dir, memoryEventsFile), "oom"); err == nil {
		met[l.nested()] = all - met[l.dir]
	}
	return met
}

// whose returns the lowest cgroup whose limit was met since the last call, or NoOOMLimit. It returns "" if that is not
// known: after a cgroup is gone, for example.
func (l *oomLimits) whose() string {
	before := l.met
	l.met = l.read()
	if _, known := l.met[l.dir]; !known {
		return ""
	}
	for dir := l.nested(); dir != "/"; dir = filepath.Dir(dir) {
		if l.met[dir] > before[dir] {
			return dir
		}
	}
	return NoOOMLimit
}

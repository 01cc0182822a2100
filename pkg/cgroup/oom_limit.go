// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "path/filepath"

// oomLimits finds on v2 the cgroup whose memory limit a kill was for. memory.events.local counts how often the limit of
// its own cgroup led to a kill (cgroup-v2.rst, "Memory Interface Files"; since Linux 5.3). v1 has no such counter.
type oomLimits struct {
	dir string            // of the cgroup that is watched
	met map[string]uint64 // count of each cgroup from dir upwards; and under nested() the sum of those below dir
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

// whose returns the lowest cgroup whose limit was met since the last call, or NoOOMLimit. It returns "" if the counters
// cannot be read, for example after the cgroup is gone.
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

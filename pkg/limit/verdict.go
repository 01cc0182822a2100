// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"path/filepath"
	"strings"
	"syscall"
	"time"

	json "github.com/go-json-experiment/json/v1"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/unixfile"
)

// Reason is the name of the limit that ended a run, spelled as in settings.
type Reason string

// The reasons. A run that exits by itself, or that a client kills, has none.
const (
	None     Reason = ""
	WallTime Reason = "wall-time"
	CPUTime  Reason = "cpu-time"
	Memory   Reason = "memory"
	Pids     Reason = "pids"
)

// Stream counts the bytes that a run wrote to one of its outputs until it ended.
type Stream struct {
	Written int64 `json:"written"`
	Dropped int64 `json:"dropped"` // of Written, beyond the limit
}

// Verdict is the end and the usage of a run, as in a verdict file and in pkg/service/runs.proto.
type Verdict struct {
	Container    string         `json:"container"`
	Exec         string         `json:"exec"`
	Pid          int            `json:"pid"`
	Started      time.Time      `json:"started"`
	Ended        time.Time      `json:"ended"`
	Status       int            `json:"status"`           // as containerd has it: the exit code, or 128 and the signal
	Signal       syscall.Signal `json:"signal,omitempty"` // that ended it; 0: it exited
	Limit        Reason         `json:"limit,omitempty"`
	Wall         time.Duration  `json:"wall_ns"`
	CPU          time.Duration  `json:"cpu_ns"`
	User         time.Duration  `json:"user_ns"`
	System       time.Duration  `json:"system_ns"`
	MemoryPeak   uint64         `json:"memory_peak"` // bytes
	OOMKills     uint64         `json:"oom_kills"`
	ForksRefused uint64         `json:"forks_refused"`
	Stdout       Stream         `json:"stdout"`
	Stderr       Stream         `json:"stderr"`
}

// Judge sets v.Limit. ended is the limit for which the shim has killed the run, or None. memory says that the container
// or a cgroup above it has a memory limit: without any, an OOM kill means that the machine had no memory left.
func (l *Limits) Judge(v *Verdict, ended Reason, memory bool) {
	switch {
	case ended != None && v.Signal == unix.SIGKILL:
		v.Limit = ended
	case v.OOMKills > 0 && v.Status != 0 && (memory || l.Memory > 0):
		v.Limit = Memory
	case v.ForksRefused > 0 && v.Status != 0:
		v.Limit = Pids
	}
}

// Write writes v to the file at path, in which {exec} stands for the exec, atomically and with mode 0600. It follows no
// link. With an empty path it writes no file.
func (v *Verdict) Write(path string) error {
	if path == "" {
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	dir, err := unixfile.OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // nothing was written
	name := strings.ReplaceAll(filepath.Base(path), "{exec}", v.Exec)
	return unixfile.WriteIn(dir, name, data, 0o600)
}

// The CPU time that a run may use over its limit is the larger of tolerance and 1/toleranceDivisor of the limit, and
// less than leastWait more on each processor if it keeps more than ten busy.
const (
	tolerance        = 10 * time.Millisecond
	toleranceDivisor = 100
	leastWait        = time.Millisecond       // bounds the rate of looks
	mostIdleWait     = 100 * time.Millisecond // bounds what an idle run may use more of each processor
)

// NextLook returns the time until a run that has used so much CPU time can exceed its limit by more than the tolerance
// on so many processors; at least idle, for which it has used nothing more, up to mostIdleWait. It returns 0 for a run
// that is over its limit.
func (l *Limits) NextLook(used, idle time.Duration, processors int) time.Duration {
	if used >= l.CPUTime {
		return 0
	}
	if l.Pids > 0 {
		processors = int(min(int64(processors), l.Pids)) // each runs on one
	}
	allowed := l.CPUTime - used + max(tolerance, l.CPUTime/toleranceDivisor)/2 // half is left for late timers
	return max(allowed/time.Duration(processors), leastWait, min(idle, mostIdleWait))
}

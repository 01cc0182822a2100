// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package limit defines the limits of a run, which is an exec with limits, and the verdict on it. It reads settings and
// environment variables. The kernel enforces the limits of memory and of processes, which pkg/ociruntime writes,
// pkg/process those of time, and pkg/stdio that of output.
package limit

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"

	"sandbox.internal/shim/pkg/unixfile"
)

// Limits are the limits of a run. 0 is none.
type Limits struct {
	WallTime time.Duration
	CPUTime  time.Duration // of all processes together
	Memory   int64         // bytes
	Pids     int64         // processes and threads at a time
	Output   int64         // bytes of stdout, and as many of stderr, that are passed on; the rest is dropped
}

const (
	// prefix begins the environment variables by which an exec sets limits.
	prefix = "SANDBOX_LIMIT_"
	names  = "wall-time, cpu-time, memory, pids, output"
)

// field is a limit as it is written.
type field struct {
	name        string
	value       func(*Limits) *int64
	parse       func(string) (int64, bool)
	least, most int64
	allowed     string
}

func fields() []field {
	const (
		leastTime, mostTime = int64(time.Millisecond), int64(24 * time.Hour)
		mebi, mostSize      = 1 << 20, 1 << 50
		aTime               = "a time such as 500ms, 2s or 1m30s, at least 1ms and at most 24h"
		memory              = "a size such as 67108864 or 64Mi, at least 1Mi and at most 1024Ti"
		output              = "a size such as 65536 or 64Ki, at least 1 and at most 1024Ti"
	)
	return []field{
		{"wall-time", func(l *Limits) *int64 { return (*int64)(&l.WallTime) }, parseTime, leastTime, mostTime, aTime},
		{"cpu-time", func(l *Limits) *int64 { return (*int64)(&l.CPUTime) }, parseTime, leastTime, mostTime, aTime},
		{"memory", func(l *Limits) *int64 { return &l.Memory }, ParseSize, mebi, mostSize, memory},
		{"pids", func(l *Limits) *int64 { return &l.Pids }, parseNumber, 1, 1 << 22, "a number from 1 to 4194304"},
		{"output", func(l *Limits) *int64 { return &l.Output }, ParseSize, 1, mostSize, output},
	}
}

// Parse reads a setting: off, which is nil, on, or a list such as "wall-time=2s,memory=64Mi". key names the setting in
// errors, which are of class errdefs.ErrInvalidArgument.
func Parse(key, text string) (*Limits, error) {
	switch text {
	case "off":
		return nil, nil
	case "on":
		return &Limits{}, nil
	}
	l := &Limits{}
	for element := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(element), "=")
		f, known := find(name)
		if !ok || !known {
			return nil, invalid(key, element, "must be off, on, or a list of name=value with commas; names are "+names)
		}
		n, err := f.read(key+": "+name, value)
		if err != nil {
			return nil, err
		}
		*f.value(l) = n
	}
	return l, nil
}

// FromEnv removes the variables that set limits from env, and returns l with these limits. They can lower a limit, or
// set one that l does not have. With a nil l, which is no setting, there must be no such variable. Errors are of class
// errdefs.ErrInvalidArgument.
func (l *Limits) FromEnv(env []string) (*Limits, []string, error) {
	isOurs := func(setting string) bool { return strings.HasPrefix(setting, prefix) }
	if !slices.ContainsFunc(env, isOurs) {
		return l, env, nil
	}
	var own Limits
	if l != nil {
		own = *l
	}
	for _, setting := range env { // as with other variables, the last one of a name counts
		if !isOurs(setting) {
			continue
		}
		variable, value, _ := strings.Cut(setting, "=")
		f, known := find(strings.ToLower(strings.ReplaceAll(variable[len(prefix):], "_", "-")))
		switch {
		case !known || variable != f.variable():
			return nil, nil, invalid(variable, value, "unknown; those of "+names+" are known")
		case l == nil:
			return nil, nil, invalid(variable, value, "needs the setting exec-limits of the container")
		}
		n, err := f.read(variable, value)
		if former := *f.value(l); err == nil && former > 0 && n > former {
			err = invalid(variable, value, "must not be more than exec-limits of the container allows")
		}
		if err != nil {
			return nil, nil, err
		}
		*f.value(&own) = n
	}
	return &own, slices.DeleteFunc(slices.Clone(env), isOurs), nil
}

func find(name string) (f field, ok bool) {
	all := fields()
	if i := slices.IndexFunc(all, func(f field) bool { return f.name == name }); i >= 0 {
		return all[i], true
	}
	return field{}, false
}

func (f field) variable() string {
	return prefix + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
}

func (f field) read(key, text string) (int64, error) {
	n, ok := f.parse(text)
	if !ok || n < f.least || n > f.most {
		return 0, invalid(key, text, "must be "+f.allowed)
	}
	return n, nil
}

func invalid(key, value, problem string) error {
	return fmt.Errorf("%s %q: %s: %w", key, value, problem, errdefs.ErrInvalidArgument)
}

func parseTime(text string) (int64, bool) {
	d, err := time.ParseDuration(text)
	return int64(d), err == nil
}

func parseNumber(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err == nil
}

// ParseSize reads a number of bytes, which may have a unit of Kubernetes (pkg/api/resource).
func ParseSize(text string) (int64, bool) {
	units := map[string]int64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}
	digits := strings.TrimRight(text, "kMGTKi")
	n, ok := parseNumber(digits)
	unit, known := units[text[len(digits):]]
	return n * unit, ok && known && n <= math.MaxInt64/unit
}

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

// Verdict is the end and the usage of a run, as in a verdict file.
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
	case ended != None && v.Signal == syscall.SIGKILL:
		v.Limit = ended
	case v.OOMKills > 0 && v.Status != 0 && (memory || l.Memory > 0):
		v.Limit = Memory
	case v.ForksRefused > 0 && v.Status != 0:
		v.Limit = Pids
	}
}

// Write writes v to the file at path, in which {exec} stands for the exec, atomically and with mode 0600. It follows no
// link.
func (v *Verdict) Write(path string) error {
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

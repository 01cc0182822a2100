// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package limit defines the limits of a run, which is an exec with limits, and the verdict on it. It reads settings and
// environment variables. The kernel enforces the limits of memory and of processes, which pkg/ociruntime writes, and
// pkg/process the others.
package limit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
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

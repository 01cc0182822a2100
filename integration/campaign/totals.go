// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// Kind is which promise was broken.
type Kind string

// The kinds of violations.
const (
	WrongAnswer Kind = "wrong answer"
	LostExit    Kind = "lost exit"
	LostDelete  Kind = "lost delete"
	OutOfOrder  Kind = "event out of order"
	Leak        Kind = "leak"
	Harmed      Kind = "harmed bystander"
	Growth      Kind = "growth of a shim"
)

// Violation is a promise that was broken.
type Violation struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
}

// String is what a person reads.
func (v Violation) String() string { return string(v.Kind) + ": " + v.Text }

// Totals counts what a campaign did by name, and what it found by kind.
type Totals map[string]int

// Add adds the counts of another part.
func (t Totals) Add(o Totals) {
	for name, n := range o {
		t[name] += n
	}
}

// Violations is how many promises were broken.
func (t Totals) Violations() int {
	n := 0
	for _, kind := range []Kind{WrongAnswer, LostExit, LostDelete, OutOfOrder, Leak, Harmed, Growth} {
		n += t[string(kind)]
	}
	return n
}

// Result is what a campaign tested, where, and what came of it.
type Result struct {
	Begun      time.Time `json:"begun"`
	Minutes    float64   `json:"minutes"`
	Seed       uint64    `json:"seed"`
	Runtime    string    `json:"runtime"`
	Shim       string    `json:"shim"` // its version, which for this shim has the commit in it
	Containerd string    `json:"containerd"`
	Kernel     string    `json:"kernel"`
	Cgroup     string    `json:"cgroup"`
	CPUs       int       `json:"cpus"`
	Totals     Totals    `json:"totals"`
}

// shimVersion is in what a shim prints for -v.
var shimVersion = regexp.MustCompile(`(?m)^ *Version: *(\S+)$`)

// NewResult asks the programs and the kernel, and begins to count.
func NewResult(ctx context.Context, programs harness.Env, seed uint64) (r Result, err error) {
	r = Result{
		Begun: time.Now().UTC().Truncate(time.Second), Seed: seed, Runtime: programs.Runtime,
		Cgroup: harness.CgroupMode(), CPUs: runtime.NumCPU(), Totals: Totals{},
	}
	if WhyNoLimits() != "" {
		r.Cgroup += " (no limits)"
	}
	out, err := exec.CommandContext(ctx, programs.Shim, "-v").Output()
	version := shimVersion.FindSubmatch(out)
	if err != nil || version == nil {
		return r, fmt.Errorf("%s -v: %q: no version in it: %w", programs.Shim, out, err)
	}
	r.Shim = string(version[1])
	if r.Containerd, err = harness.DaemonVersion(programs.Daemon); err != nil {
		return r, err
	}
	var uts unix.Utsname
	err = unix.Uname(&uts)
	r.Kernel = unix.ByteSliceToString(uts.Release[:])
	return r, err
}

// String is a line of JSON.
func (r Result) String() string {
	r.Minutes = time.Since(r.Begun).Round(time.Minute).Minutes()
	line, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(line)
}

// Append adds the line to those of other runs in a file.
func (r Result) Append(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, r)
	return errors.Join(err, f.Close())
}

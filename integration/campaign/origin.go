// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// Origin is what a run of a campaign tested, and on what machine.
type Origin struct {
	Begun      time.Time `json:"begun"`
	Shim       string    `json:"shim"` // its version, which for this shim has the commit in it
	Containerd string    `json:"containerd"`
	Kernel     string    `json:"kernel"`
	Cgroup     string    `json:"cgroup"`
	CPUs       int       `json:"cpus"`
}

// same reports whether two runs tested the same on the same machine.
func (o Origin) same(other Origin) bool {
	o.Begun, other.Begun = time.Time{}, time.Time{}
	return o == other
}

// shimVersion is in what a shim prints for -v.
var shimVersion = regexp.MustCompile(`(?m)^ *Version: *(\S+)$`)

// ReadOrigin asks the programs and the kernel.
func ReadOrigin(ctx context.Context, programs harness.Env) (Origin, error) {
	o := Origin{Begun: time.Now().UTC().Truncate(time.Second), Cgroup: harness.CgroupMode(), CPUs: runtime.NumCPU()}
	if WhyNoLimits() != "" {
		o.Cgroup += " (no limits)"
	}
	if withSystemd() {
		o.Cgroup += " with systemd"
	}
	out, err := exec.CommandContext(ctx, programs.Shim, "-v").Output()
	if err != nil {
		return o, fmt.Errorf("%s -v: %w", programs.Shim, err)
	}
	version := shimVersion.FindSubmatch(out)
	if version == nil {
		return o, fmt.Errorf("%s -v: %q: no version in it", programs.Shim, out)
	}
	o.Shim = string(version[1])
	if o.Containerd, err = harness.DaemonVersion(programs.Daemon); err != nil {
		return o, err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return o, fmt.Errorf("uname: %w", err)
	}
	o.Kernel = unix.ByteSliceToString(uts.Release[:])
	return o, nil
}

// Continue notes that a part of what the totals count is of a run of o.
func (t *Totals) Continue(o Origin) {
	if n := len(t.Origins); n == 0 || !t.Origins[n-1].same(o) {
		t.Origins = append(t.Origins, o)
	}
}

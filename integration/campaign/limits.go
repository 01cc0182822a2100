// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"sandbox.internal/shim/integration/harness"
)

// limiting are the controllers without which nothing can be limited: those of what an update sets, of the programs that
// use up what their cgroup has, and of the shims whose cgroup has no room.
var limiting = []string{"cpu", "memory", "pids"}

// WhyNoLimits says why containers and shims can have no limits on this machine. It is empty if they can.
func WhyNoLimits() string {
	if harness.CgroupMode() != "v2" {
		return ""
	}
	text, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return err.Error()
	}
	there := strings.Fields(string(text))
	missing := slices.DeleteFunc(slices.Clone(limiting), func(c string) bool { return slices.Contains(there, c) })
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("this machine's cgroup v2 has no controller %s", strings.Join(missing, ", "))
}

// possible are the steps that are left of some on this machine.
func (e *Env) possible(steps []Step) []Step {
	if e.noLimits == "" {
		return steps
	}
	return withoutLimits(steps)
}

// withoutLimits are the steps that are left of some where nothing can be limited. Containers run programs that end as
// those do that need a limit. Pods are left out, which CRI gives CPU shares.
func withoutLimits(steps []Step) []Step {
	var left []Step
	for _, s := range steps {
		if s.Op != Pod {
			left = append(left, s.withoutLimits())
		}
	}
	return left
}

func (s Step) withoutLimits() Step {
	switch s.Program {
	case hungry:
		s.Program = fails
	case forks, fills, starves, opens:
		s.Program = forever
	case forever, succeeds, fails, says, copies, terminal, stalls, halts, leaves:
	}
	if s.Op == Update {
		s.Op = State
	}
	if s.Fault != nil && (s.Fault.Kind == StarveShim || s.Fault.Kind == CrowdShim) {
		s.Fault = nil
	}
	if s.With != nil {
		with := s.With.withoutLimits()
		s.With = &with
	}
	return s
}

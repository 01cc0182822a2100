// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import "testing"

func TestWithoutLimits_LeavesNothingThatNeedsOne(t *testing.T) {
	mix := DefaultMix()
	mix.Hostile, mix.Weather, mix.Pod, mix.Together = 500, 100, 50, 300
	needs := func(s Step) bool {
		return s.Op == Pod || s.Op == Update || s.Program.crowds() || s.Program == hungry || s.Program == fills ||
			s.Program == opens || s.Fault != nil && (s.Fault.Kind == StarveShim || s.Fault.Kind == CrowdShim)
	}
	before := 0
	for round := range 20 {
		steps := Generate(1, 0, round, mix)
		for _, s := range steps {
			if needs(s) {
				before++
			}
		}
		for _, s := range withoutLimits(steps) {
			if needs(s) || s.With != nil && needs(*s.With) {
				t.Errorf("%v needs a limit", s)
			}
		}
	}
	if before == 0 {
		t.Error("no step needed a limit before")
	}
}

// The model says of a program that needs a limit what it says of the one in its place, so that the same steps can
// follow.
func TestWithoutLimits_EndsAsBefore(t *testing.T) {
	for p := range program(len(programNames)) {
		other := Step{Op: Create, Program: p}.withoutLimits().Program
		if p.endless() != other.endless() || p.waits() != other.waits() {
			t.Errorf("%v becomes %v, which does not end likewise", p, other)
		}
	}
}

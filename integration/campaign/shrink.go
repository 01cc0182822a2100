// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import "slices"

// Shrink returns the fewest steps of a list for which fails still reports true: no step can be left out, and nothing of
// what a step has beside its operation. The list itself fails. A false answer for a list that can fail, as it depends
// on time, leaves more steps.
func Shrink(steps []Step, fails func([]Step) bool) []Step {
	for part := max(len(steps)/2, 1); ; {
		fewer := withoutParts(steps, part, fails)
		if len(fewer) == len(steps) {
			if part == 1 {
				break
			}
			part /= 2
		}
		steps = fewer
		part = max(min(part, len(steps)/2), 1)
	}
	for i := range steps {
		steps = simplify(steps, i, fails)
	}
	return steps
}

// withoutParts leaves out each part of the list without which it still fails.
func withoutParts(steps []Step, part int, fails func([]Step) bool) []Step {
	for at := 0; at < len(steps); {
		rest := slices.Concat(steps[:at], steps[min(at+part, len(steps)):])
		if fails(rest) {
			steps = rest
		} else {
			at += part
		}
	}
	return steps
}

// simplify leaves out of a step what it has beside its operation, as far as the list still fails.
func simplify(steps []Step, i int, fails func([]Step) bool) []Step {
	for _, leaveOut := range []func(*Step){
		func(s *Step) { s.Fault = nil },
		func(s *Step) { s.With = nil },
		func(s *Step) { s.Reuse = false },
		func(s *Step) { s.HostPID = false },
		func(s *Step) { s.Plain = false },
		func(s *Step) { s.Shared = false },
		func(s *Step) { s.Count = min(s.Count, 1) },
		func(s *Step) { s.Members = min(s.Members, 1) },
	} {
		simpler := slices.Clone(steps)
		leaveOut(&simpler[i])
		if simpler[i] != steps[i] && fails(simpler) {
			steps = simpler
		}
	}
	return steps
}

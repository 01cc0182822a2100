// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"slices"

	"sandbox.internal/shim/integration/harness"
)

// series are values after one round and the next.
type series []float64

// rise is by how much the median of the last quarter of the values is above that of the second. In the first a shim
// makes what it keeps.
func (s series) rise() float64 {
	n := len(s) / 4
	if n < 2 { // values say nothing
		return 0
	}
	median := func(part series) float64 { return slices.Sorted(slices.Values(part))[len(part)/2] }
	return median(s[3*n:]) - median(s[n:2*n])
}

// measure is something that a shim should give back.
type measure struct {
	name    string
	allowed float64 // rise
}

// The measures. Go keeps a thread that once blocked, and garbage for a while.
var (
	descriptors = measure{"descriptors", 3}
	threads     = measure{"threads", 4}
	anonymous   = measure{"KiB of anonymous memory", 3072}
)

// subject is what a series is about.
type subject struct {
	of string
	measure
}

// usage is what was held over time.
type usage map[subject]series

func (u usage) add(of string, m measure, value int) {
	u[subject{of, m}] = append(u[subject{of, m}], float64(value))
}

// growing lists what rises.
func (u usage) growing() []Violation {
	var list []Violation
	for s, values := range u {
		if rise := values.rise(); rise > s.allowed {
			list = append(list, Violation{Kind: Growth, Text: fmt.Sprintf("%s: %s rise by %.0f, at most %.0f are allowed: %.0f",
				s.of, s.name, rise, s.allowed, values)})
		}
	}
	return list
}

// sample notes what the shims of the bystanders hold after a round.
func (e *Env) sample(u usage) error {
	for _, s := range e.stayers[:2] { // the third has the shim of the second
		of := "shim of " + s.id
		held, err := harness.ReadUsage(s.shim)
		if err != nil {
			return err
		}
		kib, err := harness.Anonymous(s.shim)
		if err != nil {
			return err
		}
		u.add(of, descriptors, len(held.FDs))
		u.add(of, threads, held.Threads)
		u.add(of, anonymous, kib)
	}
	return nil
}

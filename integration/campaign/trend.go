// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"os/exec"

	"sandbox.internal/shim/integration/harness"
)

// series are values over time.
type series struct{ x, y []float64 }

func (s *series) add(x, y float64) { s.x, s.y = append(s.x, x), append(s.y, y) }

// line fits a line to the values but those of the first quarter, in which a shim makes what it keeps. It returns how
// much the line rises between the first and the last of them, and which part of the variance the line explains.
func (s *series) line() (rise, explained float64) {
	x, y := s.x[len(s.x)/4:], s.y[len(s.y)/4:]
	n := float64(len(x))
	if n < minSamples {
		return 0, 0
	}
	var mx, my float64
	for i := range x {
		mx += x[i] / n
		my += y[i] / n
	}
	var sxx, sxy, syy float64
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
		syy += (y[i] - my) * (y[i] - my)
	}
	if sxx == 0 || syy == 0 {
		return 0, 0
	}
	return sxy / sxx * (x[len(x)-1] - x[0]), sxy * sxy / (sxx * syy)
}

// minSamples is how many values a line needs to say anything.
const minSamples = 8

// measure is something that a shim should give back.
type measure struct {
	name    string
	allowed float64 // rise between the first and the last sample
}

// measures are what usage has of a shim. Go keeps a thread that once blocked, and garbage for a while.
var measures = [...]measure{
	{"descriptors", 3}, {"threads", 4}, {"KiB of anonymous memory", 3072}, {"context switches in an idle second", 3},
}

// clearly is the part of the variance from which on a line is no accident.
const clearly = 0.5

// usage is what the shims of the bystanders have held over time.
type usage map[string]*[len(measures)]series

// add notes the values of a shim, of which the last may be missing.
func (u usage) add(shim string, x float64, values ...float64) {
	if u[shim] == nil {
		u[shim] = &[len(measures)]series{}
	}
	for i, y := range values {
		u[shim][i].add(x, y)
	}
}

// growing lists what rises.
func (u usage) growing() []Violation {
	var list []Violation
	for shim, all := range u {
		for i, m := range measures {
			rise, explained := all[i].line()
			if rise > m.allowed && explained > clearly {
				list = append(list, Violation{Kind: Growth, Text: fmt.Sprintf(
					"shim of %s: %s: a line rises by %.1f, at most %.0f are allowed: %.0f", shim, m.name, rise, m.allowed,
					all[i].y)})
			}
		}
	}
	return list
}

// idleEvery is after how many rounds the shims are watched while nothing happens, which takes some seconds.
const idleEvery = 20

// sample notes what the shims of the bystanders hold after a round.
func (e *Env) sample(u usage, round int) error {
	for i, s := range e.stayers[:2] { // the third has the shim of the second
		held, err := harness.ReadUsage(s.shim)
		if err != nil {
			return err
		}
		anon, err := harness.Anonymous(s.shim)
		if err != nil {
			return err
		}
		values := []float64{float64(len(held.FDs)), float64(held.Threads), float64(anon)}
		if round%idleEvery == idleEvery-1 && i == 0 {
			n, err := idleSwitches(s.shim)
			if err != nil {
				return err
			}
			values = append(values, n)
		}
		u.add(s.id, float64(round), values...)
	}
	return nil
}

// idleSwitches counts the context switches of a shim within a second in which nothing happens: the fewest of some
// seconds, as Go works for a while after a load.
func idleSwitches(pid int) (float64, error) {
	fewest := -1
	for range 5 {
		before, err := harness.Switches(pid)
		if err != nil {
			return 0, err
		}
		if err := exec.Command("sleep", "1").Run(); err != nil { // the time itself is what is measured
			return 0, err
		}
		after, err := harness.Switches(pid)
		if err != nil {
			return 0, err
		}
		if n := after - before; fewest < 0 || n < fewest {
			fewest = n
		}
	}
	return float64(fewest), nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
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

// measure is something that a shim, or the machine, should give back.
type measure struct {
	name    string
	allowed float64 // rise between the first and the last sample
}

// The measures of a shim. Go keeps a thread that once blocked, and garbage for a while.
var (
	descriptors = measure{"descriptors", 3}
	threads     = measure{"threads", 4}
	goroutines  = measure{"goroutines", 2}
	waiting     = measure{"events that wait for containerd", 2}
	anonymous   = measure{"KiB of anonymous memory", 3072}
	idle        = measure{"context switches in an idle second", 3}
)

// The measures of the machine, to which others on it contribute. The kernel keeps a cgroup that was removed as long as
// memory is charged to it, and ends a network namespace some time after its last process.
var (
	dying = measure{"cgroups that were removed and are still in the kernel", 500}
	nets  = measure{"network namespaces", 30}
)

// subject is what a series is about.
type subject struct {
	of string
	measure
}

// clearly is the part of the variance from which on a line is no accident.
const clearly = 0.5

// usage is what was held over time.
type usage map[subject]*series

func (u usage) add(of string, m measure, x, y float64) {
	s := subject{of, m}
	if u[s] == nil {
		u[s] = &series{}
	}
	u[s].add(x, y)
}

// growing lists what rises.
func (u usage) growing() []Violation {
	var list []Violation
	for s, values := range u {
		rise, explained := values.line()
		if rise > s.allowed && explained > clearly {
			list = append(list, Violation{Kind: Growth, Text: fmt.Sprintf(
				"%s: %s: a line rises by %.1f, at most %.0f are allowed: %.0f", s.of, s.name, rise, s.allowed, values.y)})
		}
	}
	return list
}

// idleEvery is after how many rounds the shims are watched while nothing happens, which takes some seconds.
const idleEvery = 20

// sample notes what the shims of the bystanders and the machine hold after a round.
func (e *Env) sample(ctx context.Context, u usage, round int) error {
	x := float64(round)
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
		u.add(of, descriptors, x, float64(len(held.FDs)))
		u.add(of, threads, x, float64(held.Threads))
		u.add(of, anonymous, x, float64(kib))
		if e.daemon.Env.Runtime == harness.Ours { // others do not tell
			told, err := inspect(ctx, e.bundle(s.id))
			if err != nil {
				return fmt.Errorf("%s: %w", of, err)
			}
			u.add(of, goroutines, x, float64(told.Shim.Goroutines))
			u.add(of, waiting, x, float64(told.Shim.Events.Waiting))
		}
		if round%idleEvery == idleEvery-1 {
			n, err := idleSwitches(s.shim)
			if err != nil {
				return err
			}
			u.add(of, idle, x, n)
		}
	}
	groups, err := harness.DyingCgroups()
	if err != nil {
		return err
	}
	u.add("machine", dying, x, float64(groups))
	if n, ok := harness.NetworkNamespaces(); ok {
		u.add("machine", nets, x, float64(n))
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

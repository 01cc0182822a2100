// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// Worker is what one worker is to do.
type Worker struct {
	Programs  harness.Env
	Isolation *cri.Isolation
	Seed      uint64
	Mix       Mix
	KeepGoing bool      // count what is wrong, and go on
	Trace     io.Writer // gets a line for each step; nil: none
}

// Report is what a worker tells after each round, and of a failure.
type Report struct {
	Round   int
	Totals  Totals
	Failure *Failure
}

// Failure is a list of steps after which something is wrong.
type Failure struct {
	Runtime    string      `json:"runtime"`
	Seed       uint64      `json:"seed"`
	Round      int         `json:"round"`
	Step       int         `json:"step"` // of the round, from 0
	Violations []Violation `json:"violations"`
	Steps      []Step      `json:"steps"`
	Log        string      `json:"log,omitempty"` // the end of containerd's, with the shims' in it
}

// String is what a person reads.
func (f Failure) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "FAILED: %s, seed %d, round %d, step %d\n\t%s\nof %d steps, the last are:\n", f.Runtime, f.Seed,
		f.Round, f.Step, texts(f.Violations), len(f.Steps))
	for _, s := range f.Steps[max(0, len(f.Steps)-10):] {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

// Work does rounds and reports each. It returns an error if it cannot go on, and nil if its context has ended. After a
// failure it returns, unless it is to keep going.
func (w Worker) Work(ctx context.Context, report func(Report)) (err error) {
	var e *Env
	defer func() {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	u := usage{}
	for round := 0; ctx.Err() == nil; round++ {
		if e == nil {
			if e, err = w.env(ctx); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			u = usage{}
		}
		steps := Generate(w.Seed, round, w.Mix)
		logStart := e.daemon.LogSize()
		at, found := e.runRound(ctx, steps, w.KeepGoing)
		err := e.sample(u)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && len(found) == 0 {
			found = append(found, Violation{Kind: Harmed, Text: err.Error()})
		}
		if len(found) == 0 {
			found = u.growing()
		}
		r := Report{Round: round, Totals: e.takeTotals()}
		for _, v := range found {
			r.Totals[string(v.Kind)]++
		}
		if len(found) == 0 {
			report(r)
			continue
		}
		r.Failure = &Failure{
			Runtime: w.Programs.Runtime, Seed: w.Seed, Round: round, Step: at, Violations: found,
			Steps: steps[:at+1], Log: e.daemon.LogFrom(max(logStart, e.daemon.LogSize()-1<<20)),
		}
		report(r)
		err = e.Close() // what was found may disturb what comes next
		e = nil
		if err != nil || !w.KeepGoing {
			return err
		}
	}
	return nil
}

// env begins with a new containerd.
func (w Worker) env(ctx context.Context) (*Env, error) {
	e, err := NewEnv(ctx, w.Programs, w.Isolation, strconv.Itoa(os.Getpid()))
	if err == nil {
		e.trace = w.Trace
	}
	return e, err
}

// runRound does the steps of a round.
func (e *Env) runRound(ctx context.Context, steps []Step, keepGoing bool) (at int, found []Violation) {
	e.round++
	e.serial = 0
	return run(ctx, e, steps, keepGoing)
}

// broken returns what the events have shown to be wrong.
func (e *Env) broken() []Violation { return e.order.take() }

// Replay runs the steps of a failure until they fail, or as often as times says. It returns what was wrong.
func (w Worker) Replay(ctx context.Context, steps []Step, times int) (found []Violation, err error) {
	e, err := w.env(ctx)
	if err != nil {
		return nil, err
	}
	for i := 0; i < times && len(found) == 0 && ctx.Err() == nil; i++ {
		_, found = e.runRound(ctx, append(steps, removeAll()...), false)
	}
	return found, e.Close()
}

// removeAll are the steps at the end of a round.
func removeAll() []Step {
	var steps []Step
	for i := range maxContainers {
		steps = append(steps, Step{Op: Remove, Container: i, Exec: noExec})
	}
	return steps
}

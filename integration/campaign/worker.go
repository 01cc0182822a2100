// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// Worker is what one worker is to do.
type Worker struct {
	Programs  harness.Env
	Isolation *cri.Isolation
	Seed      uint64
	Number    int
	Mix       Mix
	KeepGoing bool          // count what is wrong, and go on
	Shrink    time.Duration // to look for fewer steps after a failure; 0: not at all
	Trace     io.Writer     // gets a line for each step; nil: none
}

// Report is what a worker tells after each round, and of a failure.
type Report struct {
	Worker  int      `json:"worker"`
	Round   int      `json:"round"`
	Totals  Totals   `json:"totals"`
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is a list of steps after which something is wrong.
type Failure struct {
	Runtime    string      `json:"runtime"`
	Seed       uint64      `json:"seed"`
	Worker     int         `json:"worker"`
	Round      int         `json:"round"`
	Step       int         `json:"step"` // of the round, from 0
	Violations []Violation `json:"violations"`
	Shrunk     bool        `json:"shrunk"` // to as few as still fail
	Steps      []Step      `json:"steps"`
	Log        string      `json:"log,omitempty"` // the end of containerd's, with the shims' in it
}

// String is what a person reads.
func (f Failure) String() string {
	text := fmt.Sprintf("FAILED: %s, seed %d, worker %d, round %d, step %d\n\t%s\n", f.Runtime, f.Seed, f.Worker, f.Round,
		f.Step, texts(f.Violations))
	if f.Shrunk {
		text += fmt.Sprintf("the fewest steps that were found to fail, %d:\n", len(f.Steps))
	} else {
		text += fmt.Sprintf("%d steps, of which the last are:\n", len(f.Steps))
	}
	first := 0
	if !f.Shrunk {
		first = max(0, len(f.Steps)-10)
	}
	var b strings.Builder
	b.WriteString(text)
	for i, s := range f.Steps[first:] {
		fmt.Fprintf(&b, "%6d  %v\n", first+i, s)
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
				return ignoreEnd(ctx, err)
			}
			u = usage{}
		}
		steps := Generate(w.Seed, w.Number, round, w.Mix)
		logStart := e.daemon.LogSize()
		at, found := e.runRound(ctx, steps, w.KeepGoing)
		if ctx.Err() != nil {
			return nil
		}
		err := e.sample(ctx, u)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && len(found) == 0 {
			found = append(found, Violation{Kind: Harmed, Text: err.Error()})
		}
		if len(found) == 0 {
			found = u.growing()
		}
		r := Report{Worker: w.Number, Round: round, Totals: e.takeTotals()}
		r.Totals["rounds"], r.Totals["events"] = 1, e.order.takeSeen()
		for _, v := range found {
			r.Totals[string(v.Kind)]++
		}
		if len(found) == 0 {
			report(r)
			continue
		}
		r.Failure = w.failure(round, at, found, steps)
		r.Failure.Log = tail(e.daemon.LogFrom(logStart))
		report(r)
		err = e.Close() // what was found may disturb what comes next
		e = nil
		if err != nil {
			return fmt.Errorf("clean up after a failure: %w", err)
		}
		if !w.KeepGoing {
			return w.shrink(ctx, r, report)
		}
	}
	return nil
}

// env begins with a new containerd.
func (w Worker) env(ctx context.Context) (*Env, error) {
	e, err := NewEnv(ctx, w.Programs, w.Isolation, w.name())
	if err == nil {
		e.trace = w.Trace
	}
	return e, err
}

func (w Worker) name() string { return fmt.Sprintf("%d-w%d", os.Getpid(), w.Number) }

func (w Worker) failure(round, at int, found []Violation, steps []Step) *Failure {
	return &Failure{
		Runtime: w.Programs.Runtime, Seed: w.Seed, Worker: w.Number, Round: round, Step: at, Violations: found,
		Steps: steps[:at+1],
	}
}

// tail is the end of a log.
func tail(log string) string {
	const most = 1 << 20
	return log[max(0, len(log)-most):]
}

// ignoreEnd returns nil in place of an error that comes from the end of the context.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// runRound does the steps of a round.
func (e *Env) runRound(ctx context.Context, steps []Step, keepGoing bool) (at int, found []Violation) {
	e.round++
	e.serial = 0
	return run(ctx, e, steps, keepGoing)
}

// broken returns what the events have shown to be wrong.
func (e *Env) broken() []Violation { return e.order.take() }

// shrink looks for the fewest steps that fail as those of the report, and reports them.
func (w Worker) shrink(ctx context.Context, r Report, report func(Report)) error {
	if w.Shrink == 0 || len(r.Failure.Violations) == 0 || r.Failure.Violations[0].Kind == Growth {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.Shrink)
	defer cancel()
	replay := &replayer{worker: w}
	defer replay.close()
	// Steps that fail by chance only would be left out by chance.
	const tries = 3
	fails := func(steps []Step) bool {
		for range tries {
			if found := replay.run(ctx, steps); same(found, r.Failure.Violations) {
				return true
			}
		}
		return false
	}
	if !fails(r.Failure.Steps) {
		return nil
	}
	f := *r.Failure
	f.Steps, f.Shrunk = Shrink(f.Steps, fails), true
	report(Report{Worker: w.Number, Round: r.Round, Failure: &f})
	return nil
}

// Replay runs the steps of a failure until they fail, or as often as times says. It returns what was wrong.
func (w Worker) Replay(ctx context.Context, steps []Step, times int) []Violation {
	replay := &replayer{worker: w}
	defer replay.close()
	for range times {
		if found := replay.run(ctx, steps); len(found) > 0 {
			return found
		}
	}
	return nil
}

// replayer runs lists of steps. After one that failed it begins with a new environment.
type replayer struct {
	worker Worker
	env    *Env
}

func (r *replayer) run(ctx context.Context, steps []Step) []Violation {
	if ctx.Err() != nil {
		return nil
	}
	if r.env == nil {
		var err error
		if r.env, err = r.worker.env(ctx); err != nil {
			return nil // the steps have not failed
		}
	}
	_, found := r.env.runRound(ctx, append(steps, removeAll()...), false)
	if len(found) > 0 || ctx.Err() != nil {
		r.close()
	}
	return found
}

func (r *replayer) close() {
	if r.env != nil {
		_ = r.env.Close() // what a failure left may not go
		r.env = nil
	}
}

// removeAll are the steps at the end of a round.
func removeAll() []Step {
	var steps []Step
	for i := range maxContainers {
		steps = append(steps, Step{Op: Remove, Container: i, Exec: noExec})
	}
	return steps
}

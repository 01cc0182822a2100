// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
)

// fake is a system that does what the model allows, chosen at random, and what a test plants.
type fake struct {
	rand    *rand.Rand // nil: nothing happens by itself
	model   *model     // with one world in each place
	planted func(m *model, s Step, r *result)
	steps   int
}

func newFake(r *rand.Rand, planted func(m *model, s Step, r *result)) *fake {
	return &fake{rand: r, model: newModel(), planted: planted}
}

func (f *fake) do(_ context.Context, s Step) [2]string {
	f.steps++
	if s.elsewhere() {
		return [2]string{ok}
	}
	if s.Fault != nil && s.Fault.Kind == KillShim {
		f.model.shimDied(s.Container)
		return [2]string{"error: closed"}
	}
	// Whether a process has ended by now is chosen, too, if there is a choice.
	list := f.model.results(s)
	if f.rand != nil || len(list) == 0 {
		now := &model{}
		now[s.Container] = closure(f.model[s.Container])
		list = now.results(s)
	}
	r := list[0]
	if f.rand != nil {
		r = list[f.rand.IntN(len(list))]
	}
	if f.planted != nil {
		f.planted(f.model, s, &r)
	}
	f.model[s.Container] = []world{r.next}
	for i, answer := range r.answers {
		if answer == anyError {
			r.answers[i] = "error: some"
		}
	}
	return r.answers
}

func (f *fake) broken() []Violation { return nil }

func (f *fake) check(context.Context) []Violation { return nil }

func TestRun_OfASystemThatDoesWhatTheModelAllowsFindsNothing(t *testing.T) {
	mix := DefaultMix()
	mix.Shim, mix.Process, mix.Together, mix.Daemon = 20, 60, 200, 0
	steps := 0
	for seed := range uint64(40) {
		f := newFake(rand.New(rand.NewPCG(seed, 0)), nil)
		if at, found := run(t.Context(), f, Generate(seed, 2, mix), false); len(found) > 0 {
			t.Fatalf("seed %d, step %d: %v", seed, at, found)
		}
		steps += f.steps
	}
	t.Logf("%d steps", steps)
}

// A container with an exec that runs must not be deleted while it is paused: the planted system does that.
func TestRun_FindsAWrongAnswer(t *testing.T) {
	mix := DefaultMix()
	mix.Illegal = 300
	for seed := range uint64(40) {
		f := newFake(nil, func(m *model, s Step, r *result) {
			w := m[s.Container][0]
			running := slices.ContainsFunc(w.execs[:], func(x proc) bool { return x.phase == running })
			if s.Op == Delete && s.Exec == noExec && w.init.phase == paused && running {
				*r = result{[2]string{ok + " 0"}, world{}}
			}
		})
		if _, found := run(t.Context(), f, Generate(seed, 0, mix), false); len(found) > 0 {
			return
		}
	}
	t.Error("nothing was found in 40 rounds")
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"slices"
)

// phase is where a process is in its life, as containerd's clients see it.
type phase uint8

const (
	absent phase = iota
	created
	running
	paused // init only; execs of a paused container are running
	stopped
)

var phaseNames = [...]string{"absent", "created", "running", "paused", "stopped"}

func (p phase) String() string { return phaseNames[p] }

// proc is one state of a process.
type proc struct {
	phase   phase
	program program
	closed  bool  // its input, or its output is read
	killed  bool  // a signal that ends it was sent
	code    uint8 // once stopped
}

// ends reports whether a process that runs will end without any further step.
func (p proc) ends() bool { return p.killed || p.endsItself() }

func (p proc) endsItself() bool {
	return !p.program.endless() && (!p.program.waits() || p.closed)
}

// world is one state of a container with its execs.
type world struct {
	init   proc
	thawed bool // paused, and SIGKILL was sent by the shim, which thaws
	execs  [maxExecs]proc
}

// outcome is what an operation answers in a world, and the world after it.
type outcome struct {
	answer string
	next   world
}

// Answers that are no exit status and no state.
const (
	ok           = "ok"
	notFound     = "not found"
	precondition = "failed precondition"
	exists       = "already exists"
)

// refused is the answer to what the state table does not allow.
func (p phase) refused() string {
	if p == absent {
		return notFound
	}
	return precondition
}

// closure adds the worlds that come about without a step.
func closure(worlds []world) (list []world) {
	seen := map[world]bool{}
	for todo := worlds; len(todo) > 0; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[w] {
			continue
		}
		seen[w], list = true, append(list, w)
		todo = append(slices.Clip(todo), w.spontaneous()...)
	}
	return list
}

// dying reports whether init may end at any time, or may be dead while its exit is not told yet. That can be so of a
// paused container, too: a process that is dead is not frozen.
func (w world) dying() bool {
	return w.ending() || w.init.program == starves && (w.init.phase == running || w.init.phase == paused)
}

// ending reports whether init ends, or has ended.
func (w world) ending() bool {
	switch w.init.phase {
	case running, paused:
		return w.init.ends()
	case created:
		return w.init.killed
	case absent, stopped:
	}
	return false
}

// willEnd reports whether a process, init or an exec, has ended or ends without a further step.
func (w world) willEnd(exec int) bool {
	frozen := w.init.phase == paused && !w.thawed
	if exec == noExec {
		return w.init.phase == stopped || w.ending() && !frozen
	}
	x := w.execs[exec]
	return x.phase == stopped || x.phase == running && !frozen && (x.ends() || w.ending())
}

// spontaneous lists what can happen next without a step: a process ends. Execs end with init, and before it.
func (w world) spontaneous() []world {
	var next []world
	living := false
	for i, x := range w.execs {
		if x.phase != running {
			continue
		}
		living = true
		for _, code := range x.exits(w.dying() || w.init.program == starves) {
			n := w
			n.execs[i].phase, n.execs[i].code = stopped, code
			next = append(next, n)
		}
	}
	if w.dying() && !living {
		for _, code := range w.init.exits(w.init.program == starves) {
			n := w
			n.init.phase, n.init.code, n.thawed = stopped, code, false
			next = append(next, n)
		}
	}
	return next
}

// exits lists the statuses with which a process may end now.
func (p proc) exits(withInit bool) []uint8 {
	var codes []uint8
	if p.killed || withInit {
		codes = append(codes, killed)
	}
	if p.phase == created || !p.endsItself() {
		return codes
	}
	for _, code := range behaviours[p.program].codes {
		if !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	return codes
}

// shown is what State answers.
func (p proc) shown(frozen bool) string {
	switch {
	case p.phase == absent:
		return notFound
	case p.phase == stopped:
		return fmt.Sprintf("stopped %d", p.code)
	case p.phase == running && frozen:
		return paused.String()
	}
	return p.phase.String()
}

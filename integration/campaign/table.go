// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import "fmt"

// apply lists what a step without companion and fault can answer in a world, and what follows. It is the state table of
// pkg/process as a client of containerd sees it: what is deleted is absent, and not found.
func (w world) apply(s Step) []outcome {
	switch s.Op {
	case Create:
		return w.create(s)
	case Remove:
		return []outcome{{ok, world{}}}
	case Burst:
		return w.burst()
	case Batch, Pod, Restart, Sleep, Upgrade:
		return []outcome{{ok, w}}
	case Read:
		return w.read(s.Exec)
	default:
	}
	if w.init.phase == absent {
		return w.applyAbsent(s)
	}
	if s.Exec != noExec {
		return w.applyExec(s)
	}
	return w.applyInit(s)
}

// skipped is the answer of a step that would wait forever, as happens when steps before it were left out.
const skipped = "skipped"

func (w world) applyAbsent(s Step) []outcome {
	switch s.Op {
	case hostKill:
		return []outcome{{ok, w}}
	case Wait:
		return []outcome{{skipped, w}}
	case Stats: // containerd leaves out what it has no metrics of
		return []outcome{{noMetrics, w}}
	default:
		return []outcome{{notFound, w}}
	}
}

// noMetrics and metrics are the answers of Stats.
const (
	noMetrics = "ok 0"
	metrics   = "ok 1"
)

// read is what comes of it when the client reads on. It asks nobody.
func (w world) read(exec int) []outcome {
	p := &w.init
	if exec != noExec {
		p = &w.execs[exec]
	}
	p.closed = p.closed || p.program == stalls && p.phase != absent
	return []outcome{{ok, w}}
}

func (w world) create(s Step) []outcome {
	if w.init.phase != absent {
		return []outcome{{exists, w}}
	}
	return []outcome{{ok, world{init: proc{phase: created, program: s.Program}}}}
}

// burst runs execs from beginning to end that are in no place. In a container that ends meanwhile, one may be refused
// or killed.
func (w world) burst() []outcome {
	all := []outcome{{ok, w}}
	switch {
	case w.init.program.crowds() && (w.init.phase == running || w.init.phase == created):
		return append(all, outcome{anyError, w})
	case w.init.phase == running && !w.dying():
		return all
	case w.init.phase == absent:
		return []outcome{{notFound, w}}
	case w.init.phase == created && !w.dying(): // an exec can be started as soon as there is init
		return all
	case w.dying():
		return append(all, outcome{anyError, w})
	}
	return []outcome{{precondition, w}}
}

// killedMeanwhile is the answer of a burst of which an exec was killed with init.
const killedMeanwhile = "an exec was killed"

// applyInit is apply for what concerns init, which exists, or all of the container.
func (w world) applyInit(s Step) []outcome {
	p := w.init.phase
	n := w
	switch s.Op {
	case Start:
		n.init.phase = running
		return w.legal(n, p == created)
	case Kill, KillAll:
		return w.killInit(s.Op == KillAll)
	case hostKill:
		n.init.killed = p != stopped
		return []outcome{{ok, n}}
	case Pause:
		n.init.phase = paused
		list := w.legal(n, p == running)
		// SIGKILL thaws what Pause is freezing. v1 may not freeze what forks all the time.
		if w.dying() || w.init.program.crowds() {
			list = append(list, outcome{anyError, w})
		}
		return list
	case Resume:
		n.init.phase, n.thawed = running, false
		return w.legal(n, p == paused)
	case Update:
		return w.legal(w, p != stopped)
	case Stats:
		return w.stats()
	case Pids:
		return []outcome{{ok, w}}
	case State:
		return []outcome{{w.init.shown(false), w}}
	case CloseIO:
		n.init.closed = n.init.closed || n.init.program != stalls
		return []outcome{{ok, n}}
	case Resize:
		if p == stopped || w.init.program != terminal {
			return []outcome{{precondition, w}}
		}
		return []outcome{{ok, w}}
	case Wait:
		if p == stopped {
			return []outcome{{fmt.Sprintf("ok %d", w.init.code), w}}
		}
		return w.waits(noExec)
	case Delete:
		return w.deleteInit()
	default:
		return []outcome{{fmt.Sprintf("the model does not know %q", s.Op), w}}
	}
}

// legal is the outcome of an operation that may be refused. Of a container whose init is dead while its exit is not
// told yet, it may be refused as well, or find nothing to act on.
func (w world) legal(n world, legal bool) []outcome {
	if !legal {
		return []outcome{{w.init.phase.refused(), w}}
	}
	list := []outcome{{ok, n}}
	if w.dying() {
		list = append(list, outcome{precondition, w}, outcome{notFound, w})
	}
	return list
}

func (w world) stats() []outcome {
	one, none := outcome{metrics, w}, outcome{noMetrics, w}
	if w.dying() || w.init.phase == stopped {
		return []outcome{one, none}
	}
	return []outcome{one}
}

func (w world) killInit(all bool) []outcome {
	if w.init.phase == stopped {
		return []outcome{{notFound, w}}
	}
	n := w
	n.init.killed, n.thawed = true, w.init.phase == paused
	for i, x := range n.execs {
		n.execs[i].killed = x.killed || all && x.phase == running
	}
	list := []outcome{{ok, n}}
	if w.dying() {
		list = append(list, outcome{notFound, w})
	}
	return list
}

func (w world) deleteInit() []outcome {
	switch w.init.phase {
	case created: // it is killed first
		return []outcome{{fmt.Sprintf("ok %d", killed), world{}}}
	case stopped:
		return []outcome{{fmt.Sprintf("ok %d", w.init.code), world{}}}
	case absent, running, paused:
	}
	return []outcome{{precondition, w}}
}

// waits is the outcome of a wait for a process that has not ended: none while it lives.
func (w world) waits(exec int) []outcome {
	if w.willEnd(exec) {
		return nil // the worlds in which it has ended say how
	}
	return []outcome{{skipped, w}}
}

// unknownCode is the exit status of an exec that could not be started.
const unknownCode = 255

// applyExec is apply for an exec of a container that exists.
func (w world) applyExec(s Step) []outcome {
	i := s.Exec
	x, n := w.execs[i], w
	switch s.Op {
	case AddExec:
		return w.addExec(s)
	case Wait:
		if x.phase == stopped {
			return []outcome{{fmt.Sprintf("ok %d", x.code), w}}
		}
		return w.waits(i)
	case hostKill:
		n.execs[i].killed = x.phase == running
		return []outcome{{ok, n}}
	default:
	}
	if x.phase == absent {
		return []outcome{{notFound, w}}
	}
	switch s.Op {
	case Start:
		return w.startExec(i)
	case Kill:
		return w.killExec(i)
	case State:
		return []outcome{{x.shown(w.init.phase == paused), w}}
	case CloseIO:
		n.execs[i].closed = x.closed || x.program != stalls
		return []outcome{{ok, n}}
	case Resize:
		if x.phase == stopped || x.program != terminal {
			return []outcome{{precondition, w}}
		}
		return []outcome{{ok, w}}
	case Delete:
		n.execs[i] = proc{}
		if x.phase == running {
			return []outcome{{precondition, w}}
		}
		return []outcome{{fmt.Sprintf("ok %d", x.code), n}}
	default:
		return []outcome{{fmt.Sprintf("the model does not know %q of an exec", s.Op), w}}
	}
}

func (w world) addExec(s Step) []outcome {
	switch w.init.phase {
	case paused, stopped:
		return []outcome{{precondition, w}}
	case absent, created, running:
	}
	if w.execs[s.Exec].phase != absent {
		return []outcome{{exists, w}}
	}
	n := w
	n.execs[s.Exec] = proc{phase: created, program: s.Program}
	return []outcome{{ok, n}}
}

// startExec starts an exec. One that joins a container whose init dies just then may fail in the middle of its start;
// it has ended then, without an exit event.
func (w world) startExec(i int) []outcome {
	refused := outcome{precondition, w}
	if w.execs[i].phase != created || w.init.phase == paused || w.init.phase == stopped {
		return []outcome{refused}
	}
	n := w
	n.execs[i].phase = running
	list := []outcome{{ok, n}}
	if w.dying() || w.init.program.crowds() {
		n.execs[i].phase, n.execs[i].code = stopped, unknownCode
		list = append(list, refused, outcome{anyError, n})
	}
	return list
}

// anyError stands for each answer that is an error.
const anyError = "any error"

func (w world) killExec(i int) []outcome {
	x := w.execs[i]
	switch x.phase {
	case stopped:
		return []outcome{{notFound, w}}
	case running:
	case absent, created, paused:
		return []outcome{{precondition, w}}
	}
	n := w
	n.execs[i].killed = true
	list := []outcome{{ok, n}}
	if x.ends() || w.dying() {
		list = append(list, outcome{notFound, w})
	}
	return list
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// RoundCalls is about how many operations a round has.
const RoundCalls = 1000

// Generate returns the steps of a round, which follow from its arguments alone. The last ones remove all that is left.
func Generate(seed uint64, round int, mix Mix) []Step {
	g := &generator{
		rand:  rand.New(rand.NewPCG(seed, uint64(round))),
		mix:   mix,
		model: newModel(),
	}
	var steps []Step
	for calls := 0; calls < RoundCalls; {
		for _, s := range g.next() {
			g.model.choose(s)
			steps = append(steps, s)
			calls += s.calls()
		}
	}
	return append(steps, removeAll()...)
}

type generator struct {
	rand  *rand.Rand
	mix   Mix
	model *model
}

// one reports true in n of a thousand cases.
func (g *generator) one(n int) bool { return g.rand.IntN(1000) < n }

// next chooses a step, with what must follow it.
func (g *generator) next() []Step {
	switch {
	case g.one(g.mix.Pod):
		return []Step{g.pod()}
	case g.one(g.mix.Batch):
		return []Step{g.batch()}
	case g.one(g.mix.Upgrade / 4):
		return []Step{{Op: Upgrade, Exec: noExec, Shared: true}}
	case g.one(g.mix.Daemon / 2):
		return []Step{{Op: Restart, Exec: noExec}}
	}
	container := g.rand.IntN(maxContainers)
	worlds := g.model[container]
	if len(worlds) > 40 { // hardly anything would be wrong
		return []Step{{Op: Remove, Container: container, Exec: noExec}}
	}
	w := worlds[g.rand.IntN(len(worlds))]
	s := g.choose(w, container)
	return g.addFault(g.addCompanion(s, w))
}

// batch is a batch of containers, in which containerd may be stopped for a while.
func (g *generator) batch() Step {
	s := Step{Op: Batch, Exec: noExec, Count: 1 + g.rand.IntN(max(g.mix.Length, 1)), Shared: g.one(g.mix.Shared)}
	if g.one(20 * g.mix.Stop) {
		s.Fault = &Fault{Kind: StopContainerd, After: g.moment(), For: g.moment()}
	} else if g.one(20 * g.mix.Upgrade) {
		s.Fault = &Fault{Kind: UpgradeShim, After: g.moment()}
	}
	return s
}

// choose chooses an operation on a container that may be in the state w.
func (g *generator) choose(w world, container int) Step {
	s := Step{Container: container, Exec: noExec}
	switch {
	case g.one(g.mix.Illegal):
		return g.anything(s)
	case w.init.phase != absent && g.one(g.mix.Upgrade):
		s.Op = Upgrade
		if g.one(100) {
			s.Bad = pick(g, 1, "refuses", 1, "gives way")
		}
		return s
	case w.init.phase == running && g.one(g.mix.Sleep):
		s.Op = Sleep
		return s
	case w.init.phase == running && g.one(g.mix.Burst):
		s.Op, s.Count = Burst, 1+g.rand.IntN(max(g.mix.Length, 1))
		return s
	case (w.init.phase == running || w.init.phase == paused && g.one(200)) && g.one(600):
		return g.exec(s, w)
	}
	switch w.init.phase {
	case absent:
		return g.create(s)
	case created:
		s.Op = pick(g, 700, Start, 60, AddExec, 60, Kill, 60, Delete, 40, Update, 40, State, 20, Stats, 20, KillAll)
	case running:
		s.Op = pick(g, 200, Kill, 60, KillAll, 150, Pause, 150, Update, 150, Stats, 100, State, 100, Pids, 60, Delete)
	case paused:
		s.Op = pick(g, 600, Resume, 100, Kill, 50, KillAll, 80, Update, 80, Stats, 50, State, 40, AddExec)
	case stopped:
		s.Op = pick(g, 700, Delete, 100, State, 100, Pids, 50, Start, 50, Kill)
	}
	switch {
	case g.model.willEnd(container, noExec) && w.init.phase != stopped && g.one(700):
		s.Op = Wait
	case w.init.phase == running && w.init.program.waits() && !w.init.closed && g.one(200):
		s.Op = behaviours[w.init.program].goesOn
	case w.init.phase == running && w.init.program == terminal && g.one(100):
		s.Op = Resize
	}
	return g.complete(s)
}

// pick chooses one of several, each of which follows its weight.
func pick(g *generator, list ...any) Op {
	sum := 0
	for i := 0; i < len(list); i += 2 {
		sum += list[i].(int)
	}
	n := g.rand.IntN(sum)
	for i := 0; ; i += 2 {
		if n -= list[i].(int); n < 0 {
			return list[i+1].(Op)
		}
	}
}

func (g *generator) create(s Step) Step {
	s.Op = Create
	s.Program = forever
	switch n := g.rand.IntN(100); {
	case n < 10:
		s.Program = succeeds
	case n < 17:
		s.Program = fails
	case n < 20:
		s.Program = hungry
	case n < 22:
		s.Program = says
	case n < 24:
		s.Program = counts
	case n < 31:
		s.Program = copies
	case n < 34:
		s.Program = terminal
	}
	if g.one(g.mix.Hostile) {
		s.Program = hostileInits[g.rand.IntN(len(hostileInits))]
	}
	switch {
	case !g.mix.NoLimits || !s.Program.limited():
	case s.Program.endless():
		s.Program = forever
	default:
		s.Program = fails
	}
	s.Reuse = g.one(250)
	s.HostPID = g.one(150)
	s.Plain = g.one(100)
	// Nobody waits for the end of what sleeps. A namespace of the machine is one that it shares.
	s.Idle = s.Program.endless() && !s.HostPID && g.one(10*g.mix.Sleep)
	return s
}

// exec chooses an operation on an exec of a container that runs.
func (g *generator) exec(s Step, w world) Step {
	s.Exec = g.rand.IntN(maxExecs)
	x := w.execs[s.Exec]
	if g.model.willEnd(s.Container, s.Exec) && x.phase != stopped && g.one(700) {
		s.Op = Wait
		return s
	}
	switch x.phase {
	case absent:
		s.Op = AddExec
	case created:
		s.Op = pick(g, 800, Start, 80, Delete, 40, State, 40, CloseIO, 40, Resize)
	case running:
		s.Op = pick(g, 400, Kill, 300, cmp.Or(behaviours[x.program].goesOn, CloseIO), 100, State, 100, Resize, 100, Delete)
	case stopped:
		s.Op = pick(g, 900, Delete, 100, State)
	case paused: // no exec is
	}
	return g.complete(s)
}

// anything chooses an operation without a look at the state.
func (g *generator) anything(s Step) Step {
	if g.one(500) {
		s.Exec = g.rand.IntN(maxExecs)
		s.Op = pick(g, 1, Start, 1, AddExec, 1, Kill, 1, State, 1, CloseIO, 1, Resize, 1, Delete, 1, Read)
		return g.complete(s)
	}
	s.Op = pick(g, 1, Create, 1, Start, 1, Kill, 1, KillAll, 1, Pause, 1, Resume, 1, Update, 1, Stats, 1, Pids, 1, State,
		1, Delete, 1, CloseIO, 1, Resize)
	return g.complete(s)
}

// complete chooses what an operation needs beside its name.
func (g *generator) complete(s Step) Step {
	switch s.Op {
	case Create:
		return g.create(s)
	case AddExec:
		if s.Exec == noExec {
			s.Exec = g.rand.IntN(maxExecs)
		}
		s.Program = simple[g.rand.IntN(len(simple))]
		if g.one(g.mix.Hostile) {
			s.Program = hostileExecs[g.rand.IntN(len(hostileExecs))]
		}
	case Update:
		if g.mix.NoLimits {
			s.Op = State
		}
	}
	return s
}

// addCompanion lets something else happen to the container at the same time.
func (g *generator) addCompanion(s Step, w world) Step {
	often := g.mix.Together
	if s.Op == Upgrade || s.Op == Sleep {
		often = 400
	}
	if s.Op == Wait || s.Op == Burst || s.Op == Create || s.Op == Read || !g.one(often) {
		return s
	}
	other := Step{Container: s.Container, Exec: noExec}
	if w.init.phase == running && g.one(500) {
		other = g.exec(other, w)
	} else {
		other = g.anything(other)
	}
	if other.Op != Create && other.Op != Wait && (other.Op != AddExec || s.Op != AddExec) {
		s.With = &other
	}
	return s
}

// moments are the ends of the ranges in which faults come: most operations take some ten milliseconds.
var moments = []time.Duration{
	time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
}

// moment is at least a microsecond, since a fault For no time is one that kills.
func (g *generator) moment() time.Duration {
	most := moments[g.rand.IntN(len(moments))]
	return max(time.Duration(g.rand.Int64N(int64(most))).Round(time.Microsecond), time.Microsecond)
}

// addFault lets a process be killed or stopped at some time of the step. What is left of a container after its shim or
// containerd was killed in the middle of an operation on it is removed.
func (g *generator) addFault(s Step) []Step {
	f := &Fault{After: g.moment()}
	remove := Step{Op: Remove, Container: s.Container, Exec: noExec}
	switch {
	case s.With != nil, s.Bad != "": // which is installed, and cleans up after no shim
		return []Step{s}
	case s.Op == Upgrade && g.one(60): // it takes longer than other operations
		f.Kind, f.After = KillShim, 3*g.moment()
	case s.Op != Upgrade && g.one(g.mix.Upgrade):
		f.Kind = UpgradeShim
	case g.one(g.mix.Process):
		f.Kind = KillInit
		if s.Exec != noExec {
			f.Kind = KillExec
		} else if g.one(200) {
			f.Kind, f.For = StopInit, g.moment()
		}
		if s.Op == Wait || s.Op == Create || s.Op == Burst || s.Op == AddExec {
			return []Step{s}
		}
	case g.one(g.mix.Stop):
		f.Kind, f.For = StopShim, g.moment()
		if g.one(500) {
			f.Kind = StopContainerd
		}
	case g.one(g.mix.Shim):
		f.Kind = KillShim
	case g.one(g.mix.Daemon - g.mix.Daemon/2):
		f.Kind = KillContainerd
		s.Fault = f
		return []Step{s, remove}
	default:
		return []Step{s}
	}
	s.Fault = f
	return []Step{s}
}

// pod is a pod through CRI, in which one of the faults may happen.
func (g *generator) pod() Step {
	s := Step{
		Op: Pod, Exec: noExec, Members: 1 + g.rand.IntN(3), Count: g.rand.IntN(6), NoPause: g.one(600),
		SharePIDs: g.one(300),
	}
	kinds := []FaultKind{KillShim, KillInit, StopShim, StopContainerd}
	if g.mix.Upgrade > 0 {
		kinds = append(kinds, UpgradeShim, UpgradeShim)
	}
	if s.NoPause && s.SharePIDs {
		kinds = append(kinds, KillHolder, KillHolder)
	}
	if g.one(300) {
		s.Fault = &Fault{Kind: kinds[g.rand.IntN(len(kinds))], After: time.Duration(g.rand.Int64N(int64(time.Second / 2)))}
		if slices.Contains([]FaultKind{StopShim, StopContainerd}, s.Fault.Kind) {
			s.Fault.For = g.moment()
		}
	}
	return s
}

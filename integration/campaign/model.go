// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"slices"
	"strings"
)

// model holds, for each place, the worlds that are possible.
type model [maxContainers][]world

func newModel() *model {
	m := &model{}
	for i := range m {
		m[i] = []world{{}}
	}
	return m
}

// result is what a step and its companion answer, and a world after both.
type result struct {
	answers [2]string
	next    world
}

// String is what a person reads of the answers.
func (r result) String() string {
	if r.answers[1] == "" {
		return r.answers[0]
	}
	return r.answers[0] + " || " + r.answers[1]
}

// results lists what can come of a step in any of the possible worlds. Two operations at once are as one after the
// other, in either order.
func (m *model) results(s Step) []result {
	companion := s.companion()
	var list []result
	for _, w := range m[s.Container] {
		if companion == nil {
			for _, o := range w.apply(s) {
				list = append(list, result{[2]string{o.answer}, o.next})
			}
			continue
		}
		for _, how := range []func(w world, s, other Step) []result{
			world.whileDeleted, world.whileStarting, world.inTurn,
		} {
			list = append(list, how(w, s, *companion)...)
			for _, r := range how(w, *companion, s) {
				r.answers[0], r.answers[1] = r.answers[1], r.answers[0]
				list = append(list, r)
			}
		}
	}
	return list
}

// whileDeleted lists what else can come of a Delete and another step at the same time. A container that was never
// started is killed first, and the other step may find it like that. Of two Deletes both may succeed: containerd takes
// a task that its shim does not know any more for deleted. After that it closes the connection to the shim, under
// whatever else it asks. Just before, an exec that was never started has ended.
func (w world) whileDeleted(s, other Step) (list []result) {
	if s.Op != Delete || s.Exec != noExec {
		return nil
	}
	for _, o := range w.apply(s) {
		var answers []string
		if o.next == (world{}) {
			answers = append(answers, anyError)
			if i := other.Exec; i != noExec && w.execs[i].phase == created {
				ended := w
				ended.execs[i].phase, ended.execs[i].code = stopped, unknownCode
				for _, second := range ended.apply(other) {
					answers = append(answers, second.answer)
				}
			}
		}
		if other.Op == Delete && other.Exec == noExec {
			answers = append(answers, o.answer)
		} else if w.init.phase == created {
			dying := w
			dying.init.killed = true
			for _, during := range closure([]world{dying}) {
				for _, second := range during.apply(other) {
					answers = append(answers, second.answer)
				}
			}
		}
		for _, answer := range answers {
			list = append(list, result{[2]string{o.answer, answer}, o.next})
		}
	}
	return list
}

// whileStarting lists what else can come of a Kill or a Delete of an exec and its Start at the same time, which they
// end. A program that runs by then is killed. It may also start, end and be deleted before containerd asks for its
// state, which is the last that its Start does.
func (w world) whileStarting(s, start Step) (list []result) {
	if s.Op != Kill && s.Op != Delete || start.Op != Start || s.Exec == noExec || start.Exec != s.Exec ||
		w.execs[s.Exec].phase != created {
		return nil
	}
	failed, ran := w, w
	failed.execs[s.Exec].phase, failed.execs[s.Exec].code = stopped, unknownCode
	ran.execs[s.Exec].phase, ran.execs[s.Exec].killed = running, true
	if s.Op == Kill {
		return []result{{[2]string{ok, anyError}, failed}, {[2]string{ok, ok}, ran}}
	}
	for _, next := range append(closure([]world{ran}), failed) {
		if next.execs[s.Exec].phase == stopped {
			answer := fmt.Sprintf("ok %d", next.execs[s.Exec].code)
			next.execs[s.Exec] = proc{}
			list = append(list, result{[2]string{answer, anyError}, next}, result{[2]string{answer, ok}, next})
		}
	}
	for _, first := range w.apply(start) {
		for _, between := range closure([]world{first.next}) {
			for _, o := range between.apply(s) {
				if !isError(o.answer) {
					list = append(list, result{[2]string{o.answer, notFound}, o.next})
				}
			}
		}
	}
	return list
}

// inTurn lists what can come of two steps one after the other.
func (w world) inTurn(s, other Step) (list []result) {
	for _, first := range w.apply(s) {
		for _, between := range closure([]world{first.next}) {
			for _, second := range between.apply(other) {
				list = append(list, result{[2]string{first.answer, second.answer}, second.next})
			}
		}
	}
	return list
}

// companion is what happens at the same time as the step and changes the container: another operation, or a fault that
// ends a process.
func (s Step) companion() *Step {
	if s.With != nil {
		return s.With
	}
	if s.Fault == nil {
		return nil
	}
	switch s.Fault.Kind {
	case KillInit:
		return &Step{Op: hostKill, Container: s.Container, Exec: noExec}
	case KillExec:
		return &Step{Op: hostKill, Container: s.Container, Exec: max(s.Exec, 0)}
	}
	return nil
}

// lost reports whether the answer of the step says nothing, since who gives it was killed.
func (s Step) lost() bool {
	return s.Fault != nil && (s.Fault.Kind == KillShim || s.Fault.Kind == KillContainerd)
}

// choose moves the model on by a step of which no answer is known: all that can come of it is possible.
func (m *model) choose(s Step) {
	if s.elsewhere() {
		return
	}
	if s.Fault != nil && s.Fault.Kind == KillShim {
		m.shimDied(s.Container)
		return
	}
	var next []world
	for _, r := range m.results(s) {
		next = append(next, r.next)
	}
	if s.lost() { // perhaps before it did anything
		next = append(next, m[s.Container]...)
	}
	if len(next) > 0 {
		m[s.Container] = closure(next)
	}
}

// observe moves the model on by a step and its answers. The error says what else was possible.
func (m *model) observe(s Step, answers [2]string) error {
	if s.elsewhere() {
		if answers[0] != ok || answers[1] != "" {
			return fmt.Errorf("%v: %s", s, result{answers: answers})
		}
		return nil
	}
	if s.lost() {
		m.choose(s)
		if answers[1] != "" && answers[1] != ok {
			return fmt.Errorf("%v: after the kill: %s", s, answers[1])
		}
		return nil
	}
	if answers[0] == skipped { // nothing was asked
		return nil
	}
	var next []world
	var possible []string
	for _, r := range m.results(s) {
		if matches(r.answers[0], answers[0]) && matches(r.answers[1], answers[1]) {
			next = append(next, r.next)
		}
		if text := r.String(); !slices.Contains(possible, text) {
			possible = append(possible, text)
		}
	}
	if len(next) == 0 {
		return fmt.Errorf("%v: answer %q, possible: %q", s, result{answers: answers}.String(),
			strings.Join(possible, ", "))
	}
	m[s.Container] = closure(next)
	return nil
}

// matches reports whether an answer is one that the model allows.
func matches(allowed, answer string) bool {
	if allowed == anyError {
		return isError(answer)
	}
	return allowed == answer
}

// isError reports whether an answer is an error of any class.
func isError(answer string) bool {
	return slices.Contains([]string{notFound, precondition, exists, killedMeanwhile}, answer) ||
		strings.HasPrefix(answer, "error: ")
}

// shimDied empties the places of the containers that one shim had.
func (m *model) shimDied(container int) {
	for _, i := range sharing(container) {
		m[i] = []world{{}}
	}
}

// sharing lists the places whose containers have the same shim as that in container.
func sharing(container int) []int {
	if container < firstGrouped {
		return []int{container}
	}
	var all []int
	for i := firstGrouped; i < maxContainers; i++ {
		all = append(all, i)
	}
	return all
}

// willEnd reports whether a process ends in all possible worlds without a further step.
func (m *model) willEnd(container, exec int) bool {
	return !slices.ContainsFunc(m[container], func(w world) bool { return !w.willEnd(exec) })
}

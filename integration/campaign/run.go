// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"strings"
)

// system is what steps act on.
type system interface {
	// do does a step and returns its answer and that of its companion.
	do(ctx context.Context, s Step) [2]string
	// broken returns what events have shown to be wrong since the last call.
	broken() []Violation
	// check returns what is wrong after the last step.
	check(ctx context.Context) []Violation
}

// run does steps. It returns what is wrong and at which step that was seen, which is the last one if check saw it. With
// keepGoing, a container whose answer was wrong is removed, and the steps go on.
func run(ctx context.Context, sys system, steps []Step, keepGoing bool) (at int, found []Violation) {
	m := newModel()
	for i, s := range steps {
		if ctx.Err() != nil {
			return i, nil
		}
		var wrong []Violation
		if err := m.step(ctx, sys, s); err != nil {
			wrong = append(wrong, Violation{Kind: WrongAnswer, Text: err.Error()})
		}
		clear := len(wrong) > 0
		wrong = append(wrong, sys.broken()...)
		if len(wrong) > 0 && !keepGoing {
			return i, wrong
		}
		found = append(found, wrong...)
		if clear {
			sys.do(ctx, Step{Op: Remove, Container: s.Container, Exec: noExec})
			m[s.Container] = []world{{}}
		}
	}
	if ctx.Err() != nil {
		return len(steps), nil
	}
	return len(steps) - 1, append(found, sys.check(ctx)...)
}

// step does a step and compares its answers with the model.
func (m *model) step(ctx context.Context, sys system, s Step) error {
	if s.Op == Wait && !m.willEnd(s.Container, s.Exec) {
		return nil
	}
	return m.observe(s, sys.do(ctx, s))
}

// texts joins violations for a person.
func texts(list []Violation) string {
	var lines []string
	for _, v := range list {
		lines = append(lines, v.String())
	}
	return strings.Join(lines, "\n\t")
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/script"
)

// terminal is a kubectl that a person has started.
type terminal struct {
	*script.Terminal
	s *session
}

func (s *session) terminal(arg ...string) *terminal {
	return &terminal{s.Terminal(filepath.Join(s.bin, "kubectl"), arg...), s}
}

func (t *terminal) shows(text string) {
	t.s.Must(harness.Poll(func() error { return t.shown(text) }), "wait")
}

func (t *terminal) shown(text string) error {
	if shown := t.Shown(); !strings.Contains(shown, "\n"+text+"\r\n") {
		return fmt.Errorf("the terminal shows %q, want a line %q", shown, text)
	}
	return nil
}

// asks types a command until a line is its answer: the size comes when it comes.
func (t *terminal) asks(command, answer string) {
	t.s.Must(harness.Poll(func() error {
		t.Types(command + "\r")
		return harness.PollFor(harness.Slow(time.Second), func() error { return t.shown(answer) })
	}), "wait")
}

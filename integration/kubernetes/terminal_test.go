// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// terminal is a kubectl that a person has started.
type terminal struct {
	*harness.Terminal
	s *session
}

func (s *session) terminal(arg ...string) *terminal {
	cmd := exec.Command(filepath.Join(s.bin, "kubectl"), arg...)
	cmd.Env = s.Environ()
	t, err := harness.NewTerminal(cmd)
	s.Must(err, "start kubectl")
	return &terminal{Terminal: t, s: s}
}

func (t *terminal) types(text string) { t.s.Must(t.Type(text), "type") }

func (t *terminal) resize(lines, columns uint16) { t.s.Must(t.Resize(lines, columns), "resize") }

// shows waits until a line is text.
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
		t.types(command + "\r")
		return harness.PollFor(harness.Slow(time.Second), func() error { return t.shown(answer) })
	}), "wait")
}

// ends waits for kubectl's end, with an exit status.
func (t *terminal) ends(status int) {
	got, err := t.Wait()
	t.s.Must(err, "the end of kubectl")
	if got != status {
		t.s.Fatalf("kubectl ended with %d, want %d; it shows %q", got, status, t.Shown())
	}
}

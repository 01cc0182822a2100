// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package script

import (
	"os/exec"
	"path/filepath"

	"sandbox.internal/shim/integration/harness"
)

// Terminal is a program that a person has started on a terminal of 30 lines and 90 columns. Its methods end the session
// when something fails.
type Terminal struct {
	*harness.Terminal
	session *Session
	program string
}

// Terminal starts a program in the environment of scripts.
func (s *Session) Terminal(program string, arg ...string) *Terminal {
	cmd := exec.Command(program, arg...)
	cmd.Env = s.Environ()
	t, err := harness.NewTerminal(cmd)
	s.Must(err, "start "+program)
	return &Terminal{Terminal: t, session: s, program: filepath.Base(program)}
}

// Types types text.
func (t *Terminal) Types(text string) { t.session.Must(t.Type(text), "type") }

// Resizes changes the size of the terminal.
func (t *Terminal) Resizes(lines, columns uint16) { t.session.Must(t.Resize(lines, columns), "resize") }

// Ends waits for the end of the program, with an exit status.
func (t *Terminal) Ends(status int) {
	got, err := t.Wait()
	t.session.Must(err, "the end of "+t.program)
	if got != status {
		t.session.Fatalf("%s ended with %d, want %d; it shows %q", t.program, got, status, t.Shown())
	}
}

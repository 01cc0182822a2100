// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package script runs the shell scripts of one case of a test, and keeps what they print, so that two runtimes can be
// compared.
package script

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/console"

	"sandbox.internal/shim/integration/harness"
)

// Session is one run of a case. Its methods end it when something is not as the case wants it. It is for one goroutine.
type Session struct {
	Context context.Context //nolint:containedctx // a session is one call
	Dir     string          // in which scripts run, and their $W
	Limit   time.Duration   // of one script
	// Environ are the variables of scripts, beside W.
	Environ func() []string
	// Describe tells more when a script fails. It may be nil.
	Describe func() string

	account strings.Builder
}

// failure is what ends a session.
type failure struct{ error }

// Run calls f, and returns what ended it.
func (s *Session) Run(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	f()
	return nil
}

// Fatalf ends the session.
func (s *Session) Fatalf(format string, arg ...any) { panic(failure{fmt.Errorf(format, arg...)}) }

// Must ends the session if err is not nil.
func (s *Session) Must(err error, what string) {
	if err != nil {
		s.Fatalf("%s: %w", what, err)
	}
}

// Note adds to what is compared.
func (s *Session) Note(text string) { s.account.WriteString(text) }

// Account is all that was noted.
func (s *Session) Account() string { return s.account.String() }

// Forget forgets what was noted.
func (s *Session) Forget() { s.account.Reset() }

// Shell runs a script that must succeed, notes its output, and returns that on stdout.
func (s *Session) Shell(script string) string {
	stdout, stderr := s.sh(script)
	s.Note(stdout + "\n" + stderr + "\n")
	return stdout
}

// Quiet is Shell for output that differs each time: it is not noted.
func (s *Session) Quiet(script string) string {
	stdout, _ := s.sh(script)
	return strings.TrimSpace(stdout)
}

func (s *Session) sh(script string) (stdout, stderr string) {
	ctx, cancel := context.WithTimeout(s.Context, s.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Env = append(s.Environ(), "W="+s.Dir)
	cmd.Dir = s.Dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		more := ""
		if s.Describe != nil {
			more = "\n" + s.Describe()
		}
		s.Fatalf("script: %w (%v)\nstdout: %sstderr: %s%s", err, ctx.Err(), out.Bytes(), errs.Bytes(), more)
	}
	return out.String(), errs.String()
}

// Delete removes the members with these names from parsed JSON, at any depth.
func Delete(v any, names ...string) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range names {
			delete(v, name)
		}
		for _, child := range v {
			Delete(child, names...)
		}
	case []any:
		for _, child := range v {
			Delete(child, names...)
		}
	}
}

// Replacement puts a text in place of what differs between any two runs.
type Replacement struct {
	Pattern *regexp.Regexp
	By      string
}

// Replace does one replacement after the other.
func Replace(text string, replacements []Replacement) string {
	for _, r := range replacements {
		text = r.Pattern.ReplaceAllString(text, r.By)
	}
	return text
}

// Terminal is a program that a person has started on a terminal of 30 lines and 90 columns. Its methods end the session
// when something fails.
type Terminal struct {
	session *Session
	program string
	cmd     *exec.Cmd
	master  console.Console
	output  harness.Buffer
	exited  <-chan struct{}
}

// Terminal starts a program in the environment of scripts.
func (s *Session) Terminal(program string, arg ...string) *Terminal {
	t := &Terminal{session: s, program: filepath.Base(program), cmd: exec.Command(program, arg...)}
	master, name, err := console.NewPty()
	s.Must(err, "make a terminal")
	t.master = master
	t.Resizes(30, 90)
	slave, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	s.Must(err, "open the terminal")
	defer func() { _ = slave.Close() }() // the program has it
	t.cmd.Env = s.Environ()
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = slave, slave, slave
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	t.exited, err = harness.Spawn(t.cmd)
	s.Must(err, "start "+program)
	go func() { _, _ = io.Copy(&t.output, master) }() // until the program has ended
	return t
}

// Types types text.
func (t *Terminal) Types(text string) {
	_, err := t.master.Write([]byte(text))
	t.session.Must(err, "type")
}

// Resizes changes the size of the terminal.
func (t *Terminal) Resizes(lines, columns uint16) {
	t.session.Must(t.master.Resize(console.WinSize{Height: lines, Width: columns}), "resize")
}

// Shown is all that the terminal has shown.
func (t *Terminal) Shown() string { return t.output.String() }

// Forget makes Shown begin anew.
func (t *Terminal) Forget() { t.output.Reset() }

// Ends waits for the end of the program, with an exit status, and closes the terminal.
func (t *Terminal) Ends(status int) {
	t.session.Must(harness.Poll(func() error {
		select {
		case <-t.exited:
			return nil
		default:
			return fmt.Errorf("it does not end; it shows %q", t.Shown())
		}
	}), "the end of "+t.program)
	t.session.Must(t.master.Close(), "close the terminal")
	if got := t.cmd.ProcessState.ExitCode(); got != status {
		t.session.Fatalf("%s ended with %d, want %d; it shows %q", t.program, got, status, t.Shown())
	}
}

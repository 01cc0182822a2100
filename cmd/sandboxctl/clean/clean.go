// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package clean shows leftovers, asks whether to remove them, removes them through package removal, and reports what
// became of each: sandboxctl doctor --clean.
//
// One goroutine reads the answer of a person, and may outlive the question.
package clean

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/removal"
)

// Session is one run of --clean.
type Session struct {
	removal.Remover
	Options *cli.Options
	Ask     io.Reader // who answers the question; nil: it is not asked
	Out     io.Writer
	Err     io.Writer // for the question
}

// Outcome is what became of a leftover.
type Outcome struct {
	leftover.Leftover
	Reason string `json:"reason,omitempty"` // why it is left
}

// Report is what is printed as JSON.
type Report struct {
	Removed []Outcome `json:"removed"`
	Gone    []Outcome `json:"gone"` // was no longer a leftover when it was to be removed
	Left    []Outcome `json:"left"`
}

// ExitLeft is the status with which the program ends if something is left.
const ExitLeft = 2

// What became of a leftover, as people read it.
const (
	removed = "removed"
	gone    = "gone"
	left    = "left"
)

// Run removes what it may of leftovers. The error says that nothing was removed since that was not wanted, or is
// cli.Exit if something is left.
func (s Session) Run(ctx context.Context, found []leftover.Leftover) error {
	report := Report{Removed: []Outcome{}, Gone: []Outcome{}, Left: []Outcome{}}
	var todo []leftover.Leftover
	for _, l := range found {
		if l.Keep == "" {
			todo = append(todo, l)
		} else {
			report.Left = append(report.Left, Outcome{l, l.Keep})
		}
	}
	removal.Sort(todo)
	if !s.Options.JSON() {
		if err := show(s.Out, todo, report.Left); err != nil {
			return err
		}
	}
	if len(todo) > 0 && s.Ask != nil {
		if err := confirm(ctx, s.Ask, s.Err, len(todo)); err != nil {
			return err
		}
	}
	for _, l := range todo {
		outcome, became := Outcome{Leftover: l}, removed
		switch err := s.Remove(ctx, l); {
		case err == nil:
			report.Removed = append(report.Removed, outcome)
		case errors.Is(err, removal.ErrGone):
			became = gone
			report.Gone = append(report.Gone, outcome)
		default:
			became = left
			outcome.Reason = err.Error()
			report.Left = append(report.Left, outcome)
		}
		if err := outcome.write(s.Out, s.Options, became); err != nil {
			return err
		}
	}
	return s.finish(ctx, report)
}

// finish looks once more: what was removed may have left something that was not a leftover before.
func (s Session) finish(ctx context.Context, r Report) error {
	var lookErr error
	if len(r.Removed) > 0 {
		now, err := s.Look(ctx)
		if err != nil {
			lookErr = fmt.Errorf("whether something is left: %w", err)
		}
		for _, l := range now {
			if !r.names(l) {
				outcome := Outcome{l, "it was none before: run this again"}
				r.Left = append(r.Left, outcome)
				if err := outcome.write(s.Out, s.Options, left); err != nil {
					return err
				}
			}
		}
	}
	if s.Options.JSON() {
		if err := cli.WriteJSON(s.Out, r); err != nil {
			return err
		}
	}
	if lookErr != nil {
		return lookErr
	}
	if len(r.Left) > 0 {
		return cli.Exit(ExitLeft)
	}
	return nil
}

func (r Report) names(l leftover.Leftover) bool {
	for _, o := range r.Left {
		if o.Kind == l.Kind && o.Path == l.Path && o.Pid == l.Pid {
			return true
		}
	}
	return false
}

// show prints what is to be removed, and what is not.
func show(w io.Writer, todo []leftover.Leftover, left []Outcome) error {
	var b strings.Builder
	for _, l := range todo {
		fmt.Fprintf(&b, "%-19s %s\n", l.Kind, cli.Printable(l.Text))
		if l.Caution != "" {
			fmt.Fprintf(&b, "%-19s   note:  %s\n", "", cli.Printable(l.Caution))
		}
	}
	for _, o := range left {
		fmt.Fprintf(&b, "%-19s %s\n", o.Kind, cli.Printable(o.Text))
		o.why(&b)
	}
	if b.Len() == 0 {
		b.WriteString("no shim left anything\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// why prints why a leftover stays, and how to remove it by hand.
func (o Outcome) why(b *strings.Builder) {
	fmt.Fprintf(b, "%-19s   left:  %s\n", "", cli.Printable(o.Reason))
	fmt.Fprintf(b, "%-19s   fix:   %s\n", "", cli.Printable(o.Fix))
}

// write prints what became of a leftover, for people.
func (o Outcome) write(w io.Writer, options *cli.Options, became string) error {
	if options.JSON() {
		return nil
	}
	var b strings.Builder
	subject := o.Path
	if o.Pid > 0 {
		subject = fmt.Sprintf("pid %d", o.Pid)
	}
	fmt.Fprintf(&b, "%-8s %s %s", became+":", o.Kind, cli.Printable(subject))
	if became == gone {
		b.WriteString(" is no leftover any more")
	}
	b.WriteByte('\n')
	if became == left {
		o.why(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// confirm asks a person.
func confirm(ctx context.Context, in io.Reader, out io.Writer, n int) error {
	fmt.Fprintf(out, "Remove the %d not marked \"left\"? [y/N] ", n)
	answer := make(chan string, 1)
	go func() { // ends with the answer, or with this program: a read of a terminal cannot be given up
		line, _ := bufio.NewReader(in).ReadString('\n') // an error counts as no answer
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("nothing is removed: it was not wanted")
}

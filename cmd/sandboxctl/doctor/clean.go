// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/removal"
)

// cleaning is doctor --clean.
type cleaning struct{ wanted, yes bool }

// Outcome is what became of a leftover.
type Outcome struct {
	leftover.Leftover
	Reason string `json:"reason,omitempty"` // why it is left
}

// Cleaning is what --clean prints as JSON.
type Cleaning struct {
	Removed []Outcome `json:"removed"`
	Left    []Outcome `json:"left"`
}

func (c cleaning) run(cmd *cobra.Command, o *cli.Options, config Config) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	stdin, _ := cmd.InOrStdin().(*os.File)
	if !c.yes && (o.JSON() || stdin == nil || !term.IsTerminal(int(stdin.Fd()))) {
		return errors.New("--clean asks before it removes anything: run it on a terminal with -o table, or give --yes")
	}
	e := &Examination{Config: config}
	e.findDaemon(ctx)
	e.readConfig(ctx)
	if err := e.mayClean(); err != nil {
		return fmt.Errorf("nothing is removed: %w", err)
	}
	e.findLeftovers(ctx)
	if e.knownErr != nil {
		return fmt.Errorf("nothing is removed: containerd does not say which containers there are: %w", e.knownErr)
	}
	result := Cleaning{Removed: []Outcome{}, Left: []Outcome{}}
	var todo []leftover.Leftover
	for _, l := range e.leftovers {
		if l.Keep == "" {
			todo = append(todo, l)
		} else {
			result.Left = append(result.Left, Outcome{l, l.Keep})
		}
	}
	removal.Sort(todo)
	if !o.JSON() {
		if err := show(out, todo, result.Left); err != nil {
			return err
		}
	}
	if len(todo) > 0 && !c.yes {
		if err := confirm(ctx, stdin, cmd.ErrOrStderr(), len(todo)); err != nil {
			return err
		}
	}
	r := removal.Remover{
		State: e.Root.Resolve(e.State), Address: e.Address, Look: e.lookAgain, Binary: e.runnableShim,
	}
	for _, l := range todo {
		outcome := Outcome{Leftover: l}
		if err := r.Remove(ctx, l); err != nil {
			outcome.Reason = err.Error()
			result.Left = append(result.Left, outcome)
		} else {
			result.Removed = append(result.Removed, outcome)
		}
		if err := outcome.write(out, o); err != nil {
			return err
		}
	}
	return result.finish(ctx, out, o, e)
}

// finish looks once more: what was removed may have left something that was none before.
func (c Cleaning) finish(ctx context.Context, out io.Writer, o *cli.Options, e *Examination) error {
	if len(c.Removed) > 0 {
		now, err := e.lookAgain(ctx)
		if err != nil {
			return fmt.Errorf("whether something is left: %w", err)
		}
		for _, l := range now {
			if !c.names(l) {
				outcome := Outcome{l, "it was none before: run this again"}
				c.Left = append(c.Left, outcome)
				if err := outcome.write(out, o); err != nil {
					return err
				}
			}
		}
	}
	if o.JSON() {
		if err := cli.WriteJSON(out, c); err != nil {
			return err
		}
	}
	if len(c.Left) > 0 {
		return cli.Exit(exitFailures)
	}
	return nil
}

func (c Cleaning) names(l leftover.Leftover) bool {
	for _, o := range c.Left {
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

// why says why a leftover stays, and how to remove it by hand.
func (o Outcome) why(b *strings.Builder) {
	fmt.Fprintf(b, "%-19s   left:  %s\n", "", cli.Printable(o.Reason))
	fmt.Fprintf(b, "%-19s   mend:  %s\n", "", cli.Printable(o.Mend))
}

// write prints what became of a leftover, for people.
func (o Outcome) write(w io.Writer, options *cli.Options) error {
	if options.JSON() {
		return nil
	}
	var b strings.Builder
	subject := o.Path
	if o.Pid > 0 {
		subject = fmt.Sprintf("pid %d", o.Pid)
	}
	if o.Reason == "" {
		fmt.Fprintf(&b, "removed: %s %s\n", o.Kind, cli.Printable(subject))
	} else {
		fmt.Fprintf(&b, "left:    %s %s\n", o.Kind, cli.Printable(subject))
		o.why(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// confirm asks a person.
func confirm(ctx context.Context, in io.Reader, out io.Writer, n int) error {
	fmt.Fprintf(out, "Remove what is not left alone (%d)? [y/N] ", n)
	answer := make(chan string, 1)
	go func() { // ends with the answer, or with this program: a read of a terminal cannot be given up
		line, _ := bufio.NewReader(in).ReadString('\n') // what is no answer is none
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

// mayClean says why nothing may be removed on this node.
func (e *Examination) mayClean() error {
	switch {
	case e.Probes.Euid != 0:
		return errors.New("it needs root")
	case e.daemonErr != nil:
		return fmt.Errorf("containerd, which alone knows what is wanted, cannot be asked: %w; when it is started, "+
			"it removes most of what dead shims left itself", e.daemonErr)
	case !sameMounts(e.daemon), !sameRoot(e.daemon), !sameNamespace(e.daemon, "pid"):
		return fmt.Errorf("containerd, pid %d, sees other mounts or processes than this program does: run this where it "+
			"runs, such as by nsenter -t %d -m -p -r", e.daemon.Pid, e.daemon.Pid)
	case e.configErr != nil:
		return fmt.Errorf("containerd's configuration, which says where its state is, is not known: %w", e.configErr)
	case e.Root.Resolve(e.State) != e.Root.Resolve(e.configuredState()):
		return fmt.Errorf("--state %s is not the directory of the containerd that answers on %s: that is %s",
			e.State, e.Address, e.configuredState())
	}
	return nil
}

// lookAgain looks for leftovers anew. The containerd must be the one that was there before.
func (e *Examination) lookAgain(ctx context.Context) ([]leftover.Leftover, error) {
	now := &Examination{Config: e.Config, config: e.config, configErr: e.configErr}
	now.findDaemon(ctx)
	if now.daemonErr == nil && now.daemon.Pid != e.daemon.Pid {
		return nil, errors.New("containerd was started anew meanwhile: run this again")
	}
	if err := now.mayClean(); err != nil {
		return nil, err
	}
	now.findLeftovers(ctx)
	if now.knownErr != nil {
		return nil, fmt.Errorf("containerd does not say which containers there are: %w", now.knownErr)
	}
	return now.leftovers, nil
}

// runnableShim is the shim that made a bundle, or the one that containerd would start, if it is root's alone.
func (e *Examination) runnableShim(path string) (string, error) {
	if path != "" {
		exe, err := runnable(path)
		if !errors.Is(err, os.ErrNotExist) {
			return exe, err
		}
	}
	path, err := e.lookUp()
	if err != nil {
		return "", err
	}
	return runnable(path)
}

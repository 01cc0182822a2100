// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package top shows what the containers of a node use, again and again: a table of pods.
//
// A [Source] reports what there is. What changes between two snapshots becomes rows (table.go), filtered and sorted as
// was asked for. Only keys and snapshots change the model (model.go), from which the screen is drawn (view.go).
//
// The goroutines are bubbletea's. One at a time asks the source.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// Source reports what a node runs. It is asked by one goroutine at a time.
type Source interface {
	Snapshot(ctx context.Context) (*node.Snapshot, error)
}

const (
	defaultInterval = time.Second
	minInterval     = 200 * time.Millisecond
)

const long = `Shows the pods and containers of this node and what they use, like htop.

  up down pgup pgdn home end   choose a row
  < > left right               sort by another column; r: the other way
  /                            filter: part of a name, id or namespace; a runtime; a state
  esc                          end the filter                 q  quit

  CPU%    of one CPU; of a pod: the sum
  MEM     memory in use, without files that can be dropped; LIMIT is that of memory
  PSI     pressure: the share of the last 10 s in which something waited, in %,
          for c(pu), m(emory) or i(o), the worst of them (cgroup v2)
  PIDS    processes and threads
  EXEC/S  execs that were started
  OOM     processes killed for lack of memory since the container was created
  THR%    share of CPU quota periods in which it was throttled
  CPUS    CPUs it may run on; SOURCE is the cgroup whose CPUs it follows
  SHIM    runtime and pid of its shim

Narrow terminals show less; the line at the bottom has the rest of the row that is chosen.

With --once it prints one table, or with -o json one object, and ends. Rates are those of
the interval.`

// Command is "sandboxctl top".
func Command(o *cli.Options) *cobra.Command {
	var once bool
	interval := defaultInterval
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live what pods and containers use",
		Long:  long,
		Example: "  sandboxctl top\n  sandboxctl top --interval 5s\n" +
			"  sandboxctl top --once -o json | jq '.pods[].containers[].rates.cpu'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case interval < minInterval:
				return fmt.Errorf("--interval %v: must be %v or more", interval, minInterval)
			case o.JSON() && !once:
				return errors.New("--output json: only with --once")
			}
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = n.Close() }() // it was only asked
			if once {
				return writeOnce(cmd.Context(), cmd.OutOrStdout(), n, interval, o.JSON())
			}
			return live(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), n, interval)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	cmd.Flags().DurationVar(&interval, "interval", interval, "refresh interval, at least 200ms")
	return cmd
}

// framesPerSecond is how often the screen may be drawn: bubbletea's 60 would wake up the program as often.
const framesPerSecond = 10

// live runs until somebody ends it.
func live(ctx context.Context, in io.Reader, out io.Writer, s Source, interval time.Duration) error {
	for _, f := range []any{in, out} {
		if f, isFile := f.(*os.File); !isFile || !term.IsTerminal(int(f.Fd())) {
			return errors.New("stdin and stdout must be a terminal: add --once")
		}
	}
	_, err := tea.NewProgram(newModel(ctx, s, interval), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out),
		tea.WithFPS(framesPerSecond), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil { // a signal, which is no error
		return nil
	}
	return err
}

// onceWidth has room for all columns.
const onceWidth = 200

func writeOnce(ctx context.Context, w io.Writer, s Source, interval time.Duration, json bool) error {
	before, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	select {
	case <-time.After(interval):
	case <-ctx.Done():
		return ctx.Err()
	}
	now, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	now.SetRates(before)
	if json {
		return cli.WriteJSON(w, now)
	}
	m := newModel(ctx, s, interval)
	m.now, m.before, m.width, m.groups = now, before, onceWidth, groups(now)
	lines := append(m.summary()[:1], m.header())
	for _, r := range arrange(m.groups, m.order, "") {
		lines = append(lines, m.rowLine(&r))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

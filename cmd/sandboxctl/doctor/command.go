// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

// Exit statuses.
const (
	exitWarnings = 1 // with --strict
	exitFailures = 2
)

const long = `Check that this node has what containerd-shim-sandbox-v1 and its containers need, and show
how to fix what is missing. docs/sandboxctl-doctor.md lists the checks.

It changes nothing. For each leftover of a dead shim (processes, mounts, cgroups, sockets,
directories) it prints the command that removes it.

Exit status: 0 no failures (with --strict: no warnings either) · 1 warnings with --strict,
or doctor itself failed · 2 failures`

// Command is "sandboxctl doctor".
func Command(o *cli.Options) *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node and show how to fix problems",
		Long:  long,
		Example: "  sandboxctl doctor\n" +
			"  sandboxctl doctor -o json | jq '.checks[] | select(.status == \"failure\")'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Namespace != "" {
				return errors.New("--namespace: doctor looks at the whole node")
			}
			c := Config{
				Root: "/", Address: strings.TrimPrefix(o.Address, "unix://"), Version: cmd.Root().Version,
				Timeout: max(o.Timeout, 5*time.Second),
				Probes:  SystemProbes(),
			}
			if cmd.Flags().Changed("state") {
				c.State = o.State
			}
			report := Examine(cmd.Context(), c)
			if err := write(cmd.OutOrStdout(), o, report); err != nil {
				return err
			}
			switch {
			case report.Status == Failure:
				return cli.Exit(exitFailures)
			case report.Status == Warning && strict:
				return cli.Exit(exitWarnings)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with status 1 if there are warnings")
	return cmd
}

// write prints a report. The texts of findings may come from others: from programs, and from those who name files.
func write(w io.Writer, o *cli.Options, r Report) error {
	if o.JSON() {
		return cli.WriteJSON(w, r)
	}
	for _, c := range r.Checks {
		for i, f := range c.Findings {
			name := c.Check
			if i > 0 {
				name = ""
			}
			if _, err := fmt.Fprintf(w, "%-19s %-8s %s\n", name, short(f.Status), cli.Printable(f.Text)); err != nil {
				return err
			}
			if f.Fix != "" {
				if _, err := fmt.Fprintf(w, "%-19s %-8s %s\n", "", "  fix:", cli.Printable(f.Fix)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// short names a status in a column.
func short(s Status) string {
	if s == NotApplicable {
		return "n/a"
	}
	return string(s)
}

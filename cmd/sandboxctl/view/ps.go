// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package view has the commands that ask once and print: ps, inspect, stacks; and sleep and wake.
package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// Ps lists containers.
func Ps(o *cli.Options) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List pods and containers with their shims",
		Long: `List the pods and containers of this node, those of other runtimes too.

STATE is created, running, pausing, paused or stopped; no-task for a container that
containerd knows and nobody runs; dead for one whose shim does not answer. EXECS are
those that run now and, after the slash, those that were started since the container
was created. A * behind the VERSION of a shim says that another program is installed by
now: see sandboxctl upgrade. MEMORY is without what the kernel can drop at once. SOURCE
is the cgroup whose CPUs the container follows; a + before it says that the container
has a cpuset of its own meanwhile. With -o json there is more: see docs/sandboxctl.md.`,
		Example: "  sandboxctl ps\n  sandboxctl ps -n k8s.io -o json | jq '.pods[].name'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer n.Close() //nolint:errcheck // what was asked is answered
			s, err := n.Snapshot(cmd.Context())
			if err != nil {
				return err
			}
			if o.JSON() {
				return cli.WriteJSON(cmd.OutOrStdout(), s)
			}
			return writeTable(cmd.OutOrStdout(), s, full)
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "do not cut ids and names")
	return cmd
}

func writeTable(w io.Writer, s *node.Snapshot, full bool) error {
	cut := func(text string, most int) string {
		if r := []rune(text); !full && len(r) > most {
			return string(r[:most-1]) + "…"
		}
		return text
	}
	const idWidth, podWidth, shortID = 24, 32, 13
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i := range cells {
			cells[i] = cli.Printable(cells[i])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	fmt.Fprintln(t, "NAMESPACE\tPOD\tCONTAINER\tSTATE\tPID\tSHIM\tVERSION\tEXECS\tMEMORY\tCPUS\tSOURCE\tRUNTIME")
	var problems []string
	for _, p := range s.Pods {
		pod := "-"
		if p.Sandbox {
			pod = cut(p.Name, podWidth)
		}
		shim, version := number(p.Shim.Pid), cmp.Or(p.Shim.Version, "-")
		if p.Shim.Outdated {
			version += "*"
		}
		if len(p.Containers) == 0 {
			row(p.Namespace, pod, "-", "-", "-", shim, version, "-", "-", "-", "-", short(p.Shim.Runtime))
		}
		if p.Shim.Error != "" {
			problems = append(problems, fmt.Sprintf("%s %s: %s", p.Namespace, p.Name, p.Shim.Error))
		}
		for _, c := range p.Containers {
			name := cut(c.ID, idWidth)
			if c.Name != c.ID {
				name = cut(c.Name, idWidth) + " (" + cut(c.ID, shortID) + ")"
			}
			row(c.Namespace, pod, name, c.Shown(), number(c.Pid), shim, version, execs(&c), memory(&c),
				cmp.Or(c.Usage.CPUs, "-"), source(&c), short(c.Runtime))
			if c.Error != "" && c.Error != p.Shim.Error {
				problems = append(problems, fmt.Sprintf("%s %s: %s", c.Namespace, c.ID, c.Error))
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, problem := range problems {
		fmt.Fprintln(w, cli.Printable(problem))
	}
	return nil
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func execs(c *node.Container) string {
	if !c.ExecsKnown {
		return "-"
	}
	return fmt.Sprintf("%d/%d", c.Execs, c.ExecsStarted)
}

func memory(c *node.Container) string {
	switch {
	case c.Usage.Cgroup == "" || c.Usage.Unknown.Memory:
		return "-"
	case c.Usage.MemoryLimit == 0:
		return Bytes(c.Usage.Memory)
	}
	return Bytes(c.Usage.Memory) + "/" + Bytes(c.Usage.MemoryLimit)
}

func source(c *node.Container) string {
	switch {
	case c.CPUSet == nil:
		return "-"
	case c.CPUSet.Pinned:
		return "+" + c.CPUSet.Source
	}
	return c.CPUSet.Source
}

// short returns the name of a runtime without the common prefixes.
func short(runtime string) string {
	for _, prefix := range []string{"io.containerd.", "containerd-shim-"} {
		runtime = strings.TrimPrefix(runtime, prefix)
	}
	return cmp.Or(runtime, "-")
}

// Bytes returns a size for people: 4.2M.
func Bytes(n uint64) string {
	const step, whole = 1024, 10
	size, unit := float64(n), 0
	for size >= step && unit < len("KMGTP") {
		size /= step
		unit++
	}
	switch {
	case unit == 0:
		return fmt.Sprintf("%dB", n)
	case size < whole:
		return fmt.Sprintf("%.1f%c", size, "KMGTP"[unit-1])
	}
	return fmt.Sprintf("%.0f%c", size, "KMGTP"[unit-1])
}

// ask asks the shim of a container or a sandbox.
func ask(
	ctx context.Context, o *cli.Options, id string, question func(context.Context, *shim.Client, string) error,
) error {
	n, err := o.Open(ctx)
	if err != nil {
		return err
	}
	defer n.Close() //nolint:errcheck // what was asked is answered
	client, id, err := n.Dial(ctx, id)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	err = question(ctx, client, id)
	switch {
	case errdefs.IsNotImplemented(err):
		return fmt.Errorf("%s: its shim is of another runtime, or older than this program", id)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: its shim does not answer within %v", id, o.Timeout)
	}
	return err
}

// Sleep puts a container to sleep.
func Sleep(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "sleep ID",
		Short: "Put a container to sleep at once",
		Long: `Put a container that has the setting idle to sleep at once: it is frozen, and its memory
is given back. With the item pod all containers of its pod sleep. It wakes by whatever
needs it (docs/idle.md). It is an error if the container is used, by an exec for example.`,
		Example: "  sandboxctl sleep web",
		Args:    cli.OneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), o, args[0], func(ctx context.Context, c *shim.Client, id string) error {
				return c.Sleep(ctx, id)
			})
		},
	}
}

// Wake wakes a container.
func Wake(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "wake ID",
		Short: "Wake a container that sleeps",
		Long: `Wake a container that sleeps (docs/idle.md). It sleeps again when nobody has used it for
the time of its setting.`,
		Example: "  sandboxctl wake web",
		Args:    cli.OneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), o, args[0], func(ctx context.Context, c *shim.Client, id string) error {
				return c.Wake(ctx, id)
			})
		},
	}
}

// Stacks prints the goroutines of a shim.
func Stacks(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "stacks ID",
		Short: "Print the stack of each goroutine of a shim",
		Long: `Print the stack of each goroutine of the shim that runs a container or a sandbox.
docs/debugging.md tells which functions wait for what. A shim that has no descriptors left
does not answer: kill -USR1 PID then writes its stacks to its log. One that SIGSTOP stopped
does neither until kill -CONT PID.`,
		Example: "  sandboxctl stacks web | less",
		Args:    cli.OneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			var text string
			err := ask(cmd.Context(), o, args[0], func(ctx context.Context, c *shim.Client, _ string) (err error) {
				text, err = c.Stacks(ctx)
				return err
			})
			if err != nil {
				return err
			}
			if o.JSON() {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"stacks": text})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), cli.PrintableText(text))
			return err
		},
	}
}

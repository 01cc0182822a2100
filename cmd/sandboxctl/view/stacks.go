// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

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
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer n.Close() //nolint:errcheck // what was asked is answered
			client, id, err := n.Dial(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), o.Timeout)
			defer cancel()
			text, truncated, err := client.Stacks(ctx)
			switch {
			case errdefs.IsNotImplemented(err):
				return fmt.Errorf("%s: its shim is of another runtime, or older than this program", id)
			case errors.Is(err, context.DeadlineExceeded):
				return fmt.Errorf("%s: its shim does not answer within %v", id, o.Timeout)
			case err != nil:
				return err
			}
			if o.JSON() {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"stacks": text, "truncated": truncated})
			}
			if truncated {
				fmt.Fprintln(os.Stderr, "sandboxctl: there are more stacks than fit into an answer")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), cli.PrintableText(text))
			return err
		},
	}
}

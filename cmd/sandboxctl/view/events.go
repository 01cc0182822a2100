// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"

	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// Events follows containerd's events.
func Events(o *cli.Options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow the events of containers of this runtime",
		Long: `Print the events of containers of this runtime as containerd publishes them, until
interrupted: one a line, or with -o json one object a line. docs/events.md says what is
promised about their order.`,
		Example: "  sandboxctl events -n k8s.io\n  sandboxctl events -o json | jq -c 'select(.topic == \"/tasks/oom\")'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer n.Close() //nolint:errcheck // what was asked is answered
			return n.Events(cmd.Context(), all, func(e node.Event) error {
				if o.JSON() {
					return cli.WriteJSONLine(cmd.OutOrStdout(), e)
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.Printable(e.String()))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "include events of other runtimes")
	return cmd
}

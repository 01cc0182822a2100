// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command sandboxctl shows an operator what the containers of a node and their shims do (docs/sandboxctl.md).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/doctor"
	"sandbox.internal/shim/cmd/sandboxctl/top"
	"sandbox.internal/shim/cmd/sandboxctl/upgrade"
	"sandbox.internal/shim/cmd/sandboxctl/view"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := untilSignal()
	defer stop()
	cmd := root()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if status, ok := errors.AsType[cli.Exit](err); ok {
		return int(status)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "sandboxctl:", cli.PrintableText(err.Error()))
	return 1
}

// untilSignal returns a context that the first signal ends. Another one ends the program, which may hang.
func untilSignal() (context.Context, context.CancelFunc) {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // as nohup(1) has it
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func root() *cobra.Command {
	o := &cli.Options{}
	cmd := &cobra.Command{
		Use:   "sandboxctl",
		Short: "See what the containers of a node and their shims do, and upgrade the shims",
		Long: `See what the containers of a node and their shims do, and upgrade the shims.

sandboxctl gets the list of containers from containerd and the details from their shims. Run
it as root on the node itself. For containers of other runtimes it shows only what
containerd and the kernel report.

A command that fails prints the reason and exits with status 1. doctor has exit statuses of
its own (see doctor --help). No command but sleep, wake and upgrade changes anything.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.Bind(cmd)
	cmd.AddCommand(view.Ps(o), view.Inspect(o), view.Stacks(o), view.Sleep(o), view.Wake(o),
		doctor.Command(o), top.Command(o), upgrade.Command(o))
	return cmd
}

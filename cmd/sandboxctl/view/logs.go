// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

// Logs prints what a shim has logged.
func Logs(o *cli.Options) *cobra.Command {
	var file, unit string
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Print what the shim of a container has logged",
		Long: `Print what the shim of a container or a sandbox has logged.

A shim has no log file: containerd copies its log into its own. This command prints the
shim's part of that, from the journal of containerd's unit or from the file that --file
names. While containerd is down, log lines are lost once the pipe is full. For the output
of the container itself, use kubectl logs or the client that started it.`,
		Example: "  sandboxctl logs web -f\n  sandboxctl logs web --file /var/log/containerd.log",
		Args:    cli.OneID,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer n.Close() //nolint:errcheck // what was asked is answered
			namespace, id, err := n.StartedFor(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			found := false
			keep := func(line string) bool {
				is := ofShim(line, namespace, id)
				found = found || is
				return is
			}
			defer func() {
				if err == nil && cmd.Context().Err() == nil && !found && !follow {
					fmt.Fprintf(cmd.ErrOrStderr(), "nothing of the shim %s of namespace %s: "+
						"--unit or --file say where containerd's log is\n", cli.Printable(id), cli.Printable(namespace))
				}
			}()
			if file != "" {
				if follow {
					return errors.New("--follow: needs the journal; with a file, use tail -f")
				}
				f, err := os.Open(file)
				if err != nil {
					return fmt.Errorf("--file: %w", err)
				}
				defer f.Close() //nolint:errcheck // read only
				return filter(cmd.OutOrStdout(), f, keep)
			}
			return journal(cmd.Context(), cmd.OutOrStdout(), unit, follow, keep)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "file that has containerd's log (default: the journal)")
	cmd.Flags().StringVar(&unit, "unit", "containerd", "unit of systemd that containerd runs in")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines")
	return cmd
}

// ofShim reports whether a line of containerd's log is of the shim that was started for id, or is what containerd says
// of it. Lines of this project's shims name the namespace, some of containerd's own do not.
func ofShim(line, namespace, id string) bool {
	namespaces := fields(line, "namespace")
	return slices.Contains(fields(line, "id"), id) && (namespaces == nil || slices.Contains(namespaces, namespace))
}

// fields returns the values of name in a line of name=value pairs. A value in quotes has none in it: it may be what a
// container said. If quotes do not end, there are none.
func fields(line, name string) (values []string) {
	for line != "" {
		end := strings.IndexAny(line, ` "`)
		if end < 0 {
			end = len(line)
		}
		value, found := strings.CutPrefix(line[:end], name+"=")
		line = line[end:]
		if strings.HasPrefix(line, `"`) {
			quoted, err := strconv.QuotedPrefix(line) // as logrus writes it
			if err != nil {
				return nil
			}
			text, _ := strconv.Unquote(quoted) // it is quoted
			value, line = value+text, line[len(quoted):]
		}
		if found {
			values = append(values, value)
		}
		line = strings.TrimPrefix(line, " ")
	}
	return values
}

func filter(w io.Writer, r io.Reader, keep func(string) bool) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if text := strings.TrimSuffix(line, "\n"); keep(text) {
			if _, err := fmt.Fprintln(w, cli.PrintableText(text)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func journal(ctx context.Context, w io.Writer, unit string, follow bool, keep func(string) bool) error {
	program, err := exec.LookPath("journalctl")
	if err != nil {
		return errors.New("there is no journal on this machine (journalctl is absent): " +
			"--file names the file that has containerd's log")
	}
	args := []string{"--unit", unit, "--output", "cat", "--no-pager"}
	if follow {
		args = append(args, "--follow", "--lines", "all")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("journalctl: %w", err)
	}
	err = filter(w, out, keep)
	if err != nil {
		_ = cmd.Process.Kill() // nobody reads it any more
	}
	if ended := cmd.Wait(); err == nil && ended != nil && ctx.Err() == nil {
		err = fmt.Errorf("journalctl: %w", ended)
	}
	return err
}

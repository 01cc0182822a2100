// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cli has what all commands of sandboxctl share: the global flags, their checks, and the forms of output.
package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// Options are the global flags.
type Options struct {
	Address   string
	Namespace string // empty: all
	State     string
	Timeout   time.Duration
	Output    string // TableOutput or JSONOutput
}

// Forms of output.
const (
	TableOutput = "table"
	JSONOutput  = "json"
)

// Defaults are containerd's.
const (
	defaultAddress = "/run/containerd/containerd.sock"
	defaultState   = "/run/containerd"
	defaultTimeout = 2 * time.Second
)

// Bind adds the flags to cmd and all commands below it, and checks them before any of these runs.
func (o *Options) Bind(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVarP(&o.Address, "address", "a", defaultAddress, "socket of containerd")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of containerd: default, k8s.io, moby… (all if empty)")
	f.StringVar(&o.State, "state", defaultState, "state directory of containerd")
	f.DurationVar(&o.Timeout, "timeout", defaultTimeout, "how long containerd may take to answer, and after it the shims")
	f.StringVarP(&o.Output, "output", "o", TableOutput, "form of the output: table or json")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return o.check() }
}

func (o *Options) check() error {
	switch {
	case !filepath.IsAbs(strings.TrimPrefix(o.Address, "unix://")):
		return fmt.Errorf("--address %q: must be an absolute path", o.Address)
	case o.Namespace != "" && identifiers.Validate(o.Namespace) != nil:
		return fmt.Errorf("--namespace %q: must be %s", o.Namespace, identifier)
	case !filepath.IsAbs(o.State):
		return fmt.Errorf("--state %q: must be an absolute path", o.State)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout %s: must be more than 0", o.Timeout)
	case o.Output != TableOutput && o.Output != JSONOutput:
		return fmt.Errorf("--output %q: must be %s or %s", o.Output, TableOutput, JSONOutput)
	}
	return nil
}

// identifier says what names of namespaces and ids containerd accepts (its package identifiers).
const identifier = "letters and digits, with a single '.', '_' or '-' between them, at most 76 in all"

// OneID checks the arguments of a command that needs an id.
func OneID(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("%s: the id of a container or a sandbox is missing, or the beginning of one; "+
			"%s ps shows them", cmd.CommandPath(), cmd.Root().Name())
	case len(args) > 1:
		return fmt.Errorf("%s: takes one id, and not %d: %q", cmd.CommandPath(), len(args), args)
	}
	return nil
}

// JSON reports whether the output is for a program.
func (o *Options) JSON() bool { return o.Output == JSONOutput }

// Open connects to the containerd that the flags name.
func (o *Options) Open(ctx context.Context) (*node.Node, error) {
	return node.Open(ctx, node.Config{
		Address: strings.TrimPrefix(o.Address, "unix://"), State: o.State, Namespace: o.Namespace, Timeout: o.Timeout,
	})
}

// Printable replaces characters that could affect a terminal. All text that is not this program's own goes through it:
// a container sets its status, a shim its errors, and the creator of a container its name.
func Printable(text string) string { return printable(text, "") }

// PrintableText is Printable for text of several lines, with tabs.
func PrintableText(text string) string { return printable(text, "\n\t") }

func printable(text, also string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || strings.ContainsRune(also, r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// WriteJSON prints v, indented. Characters that could affect a terminal are escaped: encoding/json leaves some of it.
func WriteJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default: // in a string: JSON has no such character elsewhere
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('\n')
	_, err = io.WriteString(w, b.String())
	return err
}

// Exit is an error that ends the program with a status of its own. What there is to say has been printed.
type Exit int

// Error implements error.
func (e Exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/bootstrap"
)

// flags is the command line as containerd writes it (core/runtime/v2/command.go; runtime/v2/shim/util.go before 2.3).
type flags struct {
	namespace     string
	address       string // containerd's gRPC socket; part of the name of our own socket
	publishBinary string // containerd's executable; taken for compatibility, events go over ttrpc
	id            string
	bundle        string // given with delete only
	socket        string // for a daemon that is run by hand: serve here
	debugSocket   string // taken for compatibility: the profiler it is for is not linked
	debug         bool
	version       bool
	info          bool
	help          bool
	action        string
}

// parseFlags reads args. Its errors carry errUsage: containerd's own arguments always parse.
func parseFlags(args []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet(binaryName, flag.ContinueOnError)
	set.SetOutput(io.Discard) // start may write nothing but its answer; run prints the error
	set.StringVar(&f.namespace, "namespace", "", "")
	set.StringVar(&f.address, "address", "", "")
	set.StringVar(&f.publishBinary, "publish-binary", "", "")
	set.StringVar(&f.id, "id", "", "")
	set.StringVar(&f.bundle, "bundle", "", "")
	set.StringVar(&f.socket, "socket", "", "")
	set.StringVar(&f.debugSocket, "debug-socket", "", "")
	set.BoolVar(&f.debug, "debug", false, "")
	set.BoolVar(&f.version, "v", false, "")
	set.BoolVar(&f.version, "version", false, "")
	set.BoolVar(&f.info, "info", false, "")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return flags{help: true}, nil
		}
		return flags{}, fmt.Errorf("%w: %w: %w", err, errUsage, errdefs.ErrInvalidArgument)
	}
	if set.NArg() > 1 {
		return flags{}, fmt.Errorf("argument %q after the action %q: %w: %w",
			set.Arg(1), set.Arg(0), errUsage, errdefs.ErrInvalidArgument)
	}
	f.action = set.Arg(0)
	if f.action == "help" {
		return flags{help: true}, nil
	}
	return f, nil
}

// validate refuses what may not become part of a path. It runs before any path is built: namespace and id name
// directories under the state root, so a separator or ".." in them would leave it.
func (f flags) validate() error {
	if f.namespace == "" && f.id == "" {
		return fmt.Errorf("-namespace and -id are not given: %w: %w", errUsage, errdefs.ErrInvalidArgument)
	}
	if err := identifiers.Validate(f.namespace); err != nil {
		return fmt.Errorf("-namespace %q: %w", f.namespace, err)
	}
	if err := identifiers.Validate(f.id); err != nil {
		return fmt.Errorf("-id %q: %w", f.id, err)
	}
	for _, p := range []struct{ name, value string }{
		{"-bundle", f.bundle}, {"-socket", f.socket}, {"-debug-socket", f.debugSocket},
	} {
		if p.value != "" && !filepath.IsAbs(p.value) {
			return fmt.Errorf("%s %q: not an absolute path: %w", p.name, p.value, errdefs.ErrInvalidArgument)
		}
	}
	if len(f.socket) > bootstrap.MaxSocketPath {
		return fmt.Errorf("-socket %q: %d bytes, limit %d: %w",
			f.socket, len(f.socket), bootstrap.MaxSocketPath, errdefs.ErrInvalidArgument)
	}
	if f.bundle != "" && filepath.Base(f.bundle) != f.id {
		return fmt.Errorf("-bundle %q: its last element is not -id %q: %w", f.bundle, f.id, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (f flags) args() bootstrap.Args {
	return bootstrap.Args{Namespace: f.namespace, ID: f.id, Address: f.address, Debug: f.debug}
}

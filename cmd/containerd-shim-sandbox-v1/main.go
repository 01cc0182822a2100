// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-sandbox-v1 is a containerd shim v2 runtime (io.containerd.sandbox.v1). It is one binary in
// four roles, told apart by its arguments: `start` becomes the daemon or joins the pod's, `delete` cleans up after a
// dead daemon, -info and -v describe the runtime, and without an action it is a daemon on the socket that -socket
// names.
//
// This package holds the arguments, the help, and what joins the other packages (serve.go).
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/ociruntime"
	_ "sandbox.internal/shim/pkg/ociruntime/initreexec" // libcontainer runs this program with the argument "init"
	"sandbox.internal/shim/pkg/pod"
)

// help is for a person who runs the binary by hand.
//
//go:embed help.txt
var help string

// runtimeName is the runtime type that containerd maps to this binary's name.
const (
	runtimeName = "io.containerd.sandbox.v1"
	binaryName  = bootstrap.Program
)

// Exit codes. containerd only tells zero from the rest; 2 is what the flag package has taught people for wrong use.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks arguments that containerd never passes, so a person is there to read the help.
var errUsage = errors.New("wrong use")

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, serve))
}

// run does what the arguments ask and returns the exit code. Errors go to stderr as one line; containerd puts that
// line into its own error.
func run(args []string, stdin *os.File, stdout, stderr io.Writer, serve bootstrap.ServeFunc) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, help)
		return exitUsage
	}
	f, err := parseFlags(args)
	if err == nil {
		err = dispatch(f, stdin, stdout, serve)
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "%s: %s\n\n%s", binaryName, err, help)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "%s: %s", binaryName, err)
		return exitFailed
	}
}

// dispatch runs the role that f names. It is called on the main goroutine.
func dispatch(f flags, stdin *os.File, stdout io.Writer, serve bootstrap.ServeFunc) error {
	if f.help || f.version || f.info || f.action == "delete" {
		runtime.UnlockOSThread() // that of pkg/osthread, which the daemon alone needs
	}
	switch {
	case f.help:
		_, err := io.WriteString(stdout, help)
		return err
	case f.version:
		_, err := io.WriteString(stdout, versionText(runtimeFeatures()))
		return err
	case f.info:
		return info(stdin, stdout, runtimeFeatures())
	}
	if err := f.validate(); err != nil {
		return err
	}
	switch f.action {
	case "start":
		return bootstrap.Start(f.args(), stdin, serve)
	case "delete":
		return deleteBundle(f, stdout, deleteTimeout-age(),
			cleanup.Request{Container: ociruntime.Remove, Pod: pod.Remove, Serves: bootstrap.Serves})
	case "":
		if f.socket == "" {
			return fmt.Errorf("no action given, and no -socket to serve on: %w: %w", errUsage, errdefs.ErrInvalidArgument)
		}
		return bootstrap.ServeOn(f.args(), f.socket, serve)
	default:
		return fmt.Errorf("action %q: not one of start, delete: %w: %w", f.action, errUsage, errdefs.ErrInvalidArgument)
	}
}

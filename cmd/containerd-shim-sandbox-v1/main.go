// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-sandbox-v1 is a containerd shim v2 runtime (io.containerd.sandbox.v1). `start` becomes the
// daemon or joins the pod's, `delete` cleans up after a dead daemon, `init` is the first stage of what libcontainer
// starts, and -info and -v describe the runtime.
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/ociruntime"
	_ "sandbox.internal/shim/pkg/ociruntime/initreexec" // libcontainer runs this program with the argument "init"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/pod"
)

// help is for a person who runs the binary by hand.
//
//go:embed help.txt
var help string

const runtimeName = "io.containerd.sandbox.v1"

// errUsage marks arguments that containerd never passes, so a person is there to read the help.
var errUsage = fmt.Errorf("wrong use: %w", errdefs.ErrInvalidArgument)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, serve))
}

// run does what the arguments ask and returns the exit code: 2 for wrong use, as of package flag. containerd puts the
// line on stderr into its error.
func run(args []string, stdin *os.File, stdout, stderr io.Writer, serve bootstrap.ServeFunc) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, help)
		return 2
	}
	f, err := parseFlags(args)
	if err == nil {
		err = dispatch(f, stdin, stdout, serve)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "%s: %s\n\n%s", bootstrap.Program, err, help)
		return 2
	default:
		fmt.Fprintf(stderr, "%s: %s", bootstrap.Program, err)
		return 1
	}
}

func dispatch(f flags, stdin *os.File, stdout io.Writer, serve bootstrap.ServeFunc) error {
	if f.help || f.version || f.info || f.action == "delete" {
		runtime.UnlockOSThread() // that of pkg/osthread, which only the daemon needs
	}
	switch {
	case f.help:
		_, err := io.WriteString(stdout, help)
		return err
	case f.version:
		_, err := io.WriteString(stdout, versionText(ociruntime.SeccompVersion()))
		return err
	case f.action != "delete": // which removes what is left on every kernel
		var uts unix.Utsname
		_ = unix.Uname(&uts) // fails for no other reason than a bad address
		if err := checkRelease(unix.ByteSliceToString(uts.Release[:])); err != nil {
			return err
		}
	}
	if f.info {
		return info(stdin, stdout)
	}
	if err := f.validate(); err != nil {
		return err
	}
	f.Defaults = newDefaults(options.DefaultFile)
	switch f.action {
	case "start":
		return bootstrap.Start(f.Args, stdin, serve)
	case handover.ActionCheck, handover.ActionTake:
		return bootstrap.TakeOver(f.Args, stdin, f.action == handover.ActionCheck, load)
	case "delete":
		return deleteBundle(f, stdout, cleanup.Request{
			Container: ociruntime.Remove, Pod: pod.Remove, Serves: bootstrap.Serves, Extensions: extensions(),
		})
	default:
		return fmt.Errorf("action %q: not one of start, delete: %w", f.action, errUsage)
	}
}

// checkRelease refuses a kernel older than 5.10, and accepts a release that it cannot parse.
func checkRelease(release string) error {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	if n == 2 && (major < 5 || major == 5 && minor < 10) {
		return fmt.Errorf("the kernel is Linux %s, and 5.10 is the oldest that is supported: %w",
			release, errdefs.ErrNotImplemented)
	}
	return nil
}

// flags is the command line as containerd writes it (core/runtime/v2/command.go; runtime/v2/shim/util.go before 2.3).
type flags struct {
	bootstrap.Args
	bundle  string // given only with delete
	version bool
	info    bool
	help    bool
	action  string
}

// parseFlags reads args. Its errors are errUsage.
func parseFlags(args []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet(bootstrap.Program, flag.ContinueOnError)
	set.SetOutput(io.Discard) // start may write nothing but its answer; run prints the error
	set.StringVar(&f.Namespace, "namespace", "", "")
	set.StringVar(&f.Address, "address", "", "")
	// These have no effect: events go over ttrpc, start makes the socket, and there is no profiler.
	set.String("publish-binary", "", "")
	set.String("socket", "", "")
	set.String("debug-socket", "", "")
	set.StringVar(&f.ID, "id", "", "")
	set.StringVar(&f.bundle, "bundle", "", "")
	set.BoolVar(&f.Debug, "debug", false, "")
	set.BoolVar(&f.version, "v", false, "")
	set.BoolVar(&f.version, "version", false, "")
	set.BoolVar(&f.info, "info", false, "")
	err := set.Parse(args)
	f.action = set.Arg(0)
	switch {
	case errors.Is(err, flag.ErrHelp), f.action == "help":
		return flags{help: true}, nil
	case err != nil:
		return flags{}, fmt.Errorf("%w: %w", err, errUsage)
	case set.NArg() > 1:
		return flags{}, fmt.Errorf("argument %q after the action %q: %w", set.Arg(1), set.Arg(0), errUsage)
	}
	return f, nil
}

// validate refuses a namespace or an id that would leave the directories that it names.
func (f flags) validate() error {
	if f.Namespace == "" && f.ID == "" {
		return fmt.Errorf("-namespace and -id are not given: %w", errUsage)
	}
	if err := identifiers.Validate(f.Namespace); err != nil {
		return fmt.Errorf("-namespace %q: %w", f.Namespace, err)
	}
	if err := identifiers.Validate(f.ID); err != nil {
		return fmt.Errorf("-id %q: %w", f.ID, err)
	}
	if f.bundle != "" && (!filepath.IsAbs(f.bundle) || filepath.Base(f.bundle) != f.ID) {
		return fmt.Errorf("-bundle %q: must be an absolute path that ends in -id %q: %w",
			f.bundle, f.ID, errdefs.ErrInvalidArgument)
	}
	return nil
}

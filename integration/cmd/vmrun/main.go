// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command vmrun runs one command in a throw-away virtual machine; package vm says what the command finds there.
//
//	vmrun [flags] -- COMMAND [ARG...]
//
// Output and standard error come back apart and unchanged. The exit status is the command's, or
//
//	124      the command ran past -timeout
//	125      the guest or vmrun itself failed
//	126/127  as in a shell: not executable, not found
//	128+N    signal N ended vmrun
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/vm"
)

func main() {
	c := vm.Default()
	if console := parse(&c); *console != "" {
		f, err := os.OpenFile(*console, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
		if err != nil {
			fail(err)
		}
		c.Console = f
	}
	os.Exit(run(c))
}

// run ends the guest on a signal.
func run(c vm.Config) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// The reader of the output may leave. The files of the guest are removed all the same.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // ends with the process
		if s, ok := (<-signals).(syscall.Signal); ok {
			cancel(ended(s))
		}
	}()
	status, err := vm.Run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmrun:", err)
	}
	if s, ok := errors.AsType[ended](err); ok {
		return 128 + int(s)
	}
	return status
}

// ended is the signal that ended vmrun.
type ended syscall.Signal

func (e ended) Error() string { return syscall.Signal(e).String() }

// parse reads the arguments into c, and returns the file for the console.
func parse(c *vm.Config) (console *string) {
	flag.CommandLine.Init("vmrun", flag.ContinueOnError)
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: vmrun [flags] -- COMMAND [ARG...]")
		flag.PrintDefaults()
	}
	list := func(to *[]string) func(string) error {
		return func(s string) error { *to = append(*to, s); return nil }
	}
	seconds := func(name string, to *time.Duration, usage string) {
		flag.Func(name, fmt.Sprintf("%s; a duration, or a number of seconds (default %v)", usage, *to),
			func(s string) (err error) {
				if *to, err = time.ParseDuration(s); err != nil {
					*to, err = time.ParseDuration(s + "s")
				}
				return err
			})
	}
	flag.StringVar(&c.Arch, "arch", c.Arch, "the `processor`, amd64 or arm64")
	flag.StringVar(&c.Root, "root", "",
		"a `directory` that root.sh made, for another processor or another Debian than the host's")
	flag.BoolVar(&c.Systemd, "systemd", false, "systemd is pid 1, with D-Bus; the command is a service")
	flag.BoolVar(&c.V1, "v1", false, "with -systemd, cgroup v1, and v2 beside it without controllers")
	flag.Func("rw", "a `directory` of the host that the command may change; may be repeated", list(&c.Share))
	flag.Func("tmpfs", "a `directory` that is an empty tmpfs; may be repeated", list(&c.Tmpfs))
	flag.StringVar(&c.Disk, "disk", "", "the `size` of an empty ext4 disk at /disk, such as 4G")
	flag.Func("env", "a variable to pass, `NAME` or NAME=VALUE, beside PATH, HOME, LANG, TERM and GO*; may be repeated",
		func(s string) error {
			if value, ok := os.LookupEnv(s); ok {
				s += "=" + value
			}
			if strings.Contains(s, "=") {
				c.Env = append(c.Env, s)
			}
			return nil
		})
	flag.IntVar(&c.CPUs, "cpus", c.CPUs, "virtual CPUs")
	seconds("timeout", &c.Timeout, "how long the command may take")
	seconds("boot-time", &c.BootTime, "how long the guest may take to begin the command before it is booted again")
	flag.StringVar(&c.Append, "append", "", "more kernel parameters, such as hugepages=16")
	flag.StringVar(&c.Kernel, "kernel", os.Getenv("VMRUN_KERNEL"),
		"the `version` of a kernel of Debian's, such as 5.10, or a directory with an unpacked one")
	console = flag.String("console", "", "a `file` for what the guest's kernel says")
	if err := flag.CommandLine.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	} else if err != nil {
		os.Exit(vm.StatusFailed) // Parse has said why
	}
	if c.Command = flag.Args(); len(c.Command) == 0 {
		flag.Usage()
		os.Exit(vm.StatusFailed)
	}
	return console
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "vmrun:", err)
	os.Exit(vm.StatusFailed)
}

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
	"syscall"

	"sandbox.internal/shim/integration/vm"
)

func main() {
	c := vm.Default()
	parse(&c)
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

// parse reads the arguments into c.
func parse(c *vm.Config) {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: vmrun [flags] -- COMMAND [ARG...]")
		flag.PrintDefaults()
	}
	list := func(to *[]string) func(string) error {
		return func(s string) error { *to = append(*to, s); return nil }
	}
	flag.StringVar(&c.Arch, "arch", c.Arch, "the `processor`, amd64 or arm64")
	flag.StringVar(&c.Root, "root", "",
		"a `directory` that root.sh made, for another processor or another Debian than the host's")
	flag.BoolVar(&c.Systemd, "systemd", false, "systemd is pid 1, with D-Bus; the command is a service")
	flag.BoolVar(&c.V1, "v1", false, "with -systemd, cgroup v1, and v2 beside it without controllers")
	flag.Func("rw", "a `directory` of the host that the command may change; may be repeated", list(&c.Share))
	flag.Func("tmpfs", "a `directory` that is an empty tmpfs; may be repeated", list(&c.Tmpfs))
	flag.StringVar(&c.Disk, "disk", "", "the `size` of an empty ext4 disk at /disk, such as 4G")
	flag.Func("env", "a variable, `NAME=VALUE`, beside PATH, HOME, LANG, TERM and GO*; may be repeated", list(&c.Env))
	flag.IntVar(&c.CPUs, "cpus", c.CPUs, "virtual CPUs")
	flag.DurationVar(&c.Timeout, "timeout", c.Timeout, "how long the command may take")
	flag.StringVar(&c.Append, "append", "", "more kernel parameters, such as hugepages=16")
	flag.StringVar(&c.Kernel, "kernel", "", "the `series` of a kernel of Debian's, such as 5.10")
	flag.Parse()
	if c.Command = flag.Args(); len(c.Command) == 0 {
		flag.Usage()
		os.Exit(vm.StatusFailed)
	}
}

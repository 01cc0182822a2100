// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command vmtest runs tests of this repository on cgroup v2, with or without systemd: on this machine if it is like
// that, else in a virtual machine. It is called in the directory of its module.
//
//	vmtest [flags] PACKAGES...
//
// PACKAGES are patterns as `go test` knows them, such as ./pkg/... or ./integration/containerd, relative to the
// repository. PACKAGE=REGEX runs those of its tests that match, and fails when none does.
//
// With -append, for tests of a kernel that lacks something, and with -kernel, it is always a virtual machine.
//
// With -root the guest has the root that integration/vm/root.sh made, of another Debian or for another processor,
// GOARCH. hack/musl.sh runs vmtest then, so that all is compiled for that.
//
// The tests are compiled here and run one package after the other. They have no race detector: emulated, it takes many
// times as long, and these tests are here for the kernel. SHIM_BINARY is the shim to test, and SANDBOXCTL_BINARY the
// operator's tool, for tests of that.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/tools"
	"sandbox.internal/shim/integration/vm"
)

// suite is what the flags say.
type suite struct {
	systemd bool
	run     string
	out     string
	extra   string // parameters of the kernel
	require string // names for SHIM_TEST_REQUIRE
	kernel  string
	root    string // of the guest; the host's when empty
	v1      bool   // cgroup v1
	limit   time.Duration
	cpus    int
}

func main() {
	var s suite
	flag.BoolVar(&s.systemd, "systemd", false, "run where systemd is pid 1")
	flag.StringVar(&s.run, "run", "", "run the tests that match `regex`, as `go test -run` does")
	flag.StringVar(&s.out, "o", "", "`directory` for the compiled tests, and for their logs in log below it")
	flag.StringVar(&s.extra, "append", "",
		"more kernel `parameters`, such as cgroup_disable=memory; the tests then run in a virtual machine")
	flag.StringVar(&s.require, "require", "", "more `names` for SHIM_TEST_REQUIRE, with commas between them")
	flag.StringVar(&s.root, "root", "", "a `directory` that is the guest's root, made by integration/vm/root.sh")
	flag.BoolVar(&s.v1, "v1", false, "with -systemd, run on cgroup v1, always in a virtual machine")
	flag.DurationVar(&s.limit, "timeout", 30*time.Minute, "how long each package may take")
	flag.IntVar(&s.cpus, "cpus", 0, "the guest's CPUs, as vmrun has it when 0; tests of CPU sets need 4")
	flag.StringVar(&s.kernel, "kernel", "",
		"the `series` of a kernel of Debian's, such as 5.10; the tests then run in a virtual machine")
	plan := flag.String("plan", "", "run what the `file` lists: how vmtest calls itself in the guest")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var status int
	var err error
	if *plan != "" {
		status, err = runPlan(ctx, *plan)
	} else {
		status, err = run(ctx, s, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		status = 1
	}
	os.Exit(status)
}

// hanging is how many packages may take all of their time: the guest ends after so many times that.
const hanging = 3

// run compiles the tests of some packages and runs them, here or in a guest.
func run(ctx context.Context, s suite, patterns []string) (int, error) {
	if s.out == "" {
		return 1, fmt.Errorf("flag -o: a directory is needed: %w", errdefs.ErrInvalidArgument)
	}
	out, err := filepath.Abs(s.out)
	if err != nil {
		return 1, err
	}
	// The guest may write to the logs alone: a program in a directory that it may write to is read anew whenever it is
	// started.
	logs := filepath.Join(out, "log")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return 1, err
	}
	tests, err := compile(ctx, s, out, patterns)
	if err != nil {
		return 1, err
	}
	native := unified() && (!s.systemd || booted()) && s.extra == "" && s.kernel == "" && s.root == "" && !s.v1
	programs, err := tools.Build(ctx)
	if err != nil {
		return 1, err
	}
	env, err := environment(s, native, programs, out)
	if err != nil {
		return 1, err
	}
	text, err := json.Marshal(plan{Tests: tests, Env: env, Logs: logs, Limit: s.limit})
	if err != nil {
		return 1, err
	}
	name := filepath.Join(out, "plan.json")
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return 1, err
	}
	if native {
		return runPlan(ctx, name)
	}
	self, err := s.guestSelf(ctx, out)
	if err != nil {
		return 1, err
	}
	c := vm.Default()
	c.Root, c.See = s.root, []string{filepath.Dir(c.Dir), programs}
	c.Systemd, c.V1 = s.systemd, s.v1
	c.Command = []string{self, "-plan", name}
	c.Share = []string{logs}
	c.Disk = "4G"
	c.Append = "hugepages=16 " + s.extra
	c.Timeout = hanging * s.limit
	c.Kernel = s.kernel
	c.CPUs = cmp.Or(s.cpus, c.CPUs)
	console, err := os.OpenFile(filepath.Join(out, "console.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return 1, err
	}
	defer func() { _ = console.Close() }() // it only helps to explain a failure
	c.Console = console
	return vm.Run(ctx, c)
}

// guestSelf returns this program for the guest.
func (s suite) guestSelf(ctx context.Context, out string) (string, error) {
	if s.root == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		return keep(self, out)
	}
	self := filepath.Join(out, "vmtest")
	build := append([]string{"build", "-o", self}, s.flags()...)
	_, err := goCommand(ctx, ".", append(build, "./cmd/vmtest")...)
	return self, err
}

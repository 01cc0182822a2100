// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

func main() {
	runtime.LockOSThread() // the parent's death signal is that of the thread
	var err error
	if len(os.Args) == 3 && os.Args[1] == insideArg {
		err = inside(os.Args[2])
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		runtimes = flag.String("runtimes", baseline+" "+harness.Ours,
			"runtimes to test, separated by spaces; the runc shim is the measure")
		pattern = flag.String("run", ".", "regular expression: only these tests")
		logs    = flag.String("logs", filepath.Join("..", "bin", "conformance"),
			"directory for the tests' whole output")
	)
	flag.Parse()
	only, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("containers need root: sudo make conformance")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s := suite{logs: *logs, criu: probeCRIU(ctx)}
	if s.tools, err = tools.Build(ctx); err != nil {
		return err
	}
	if err := build(ctx, s.tools); err != nil {
		return err
	}
	if s.busybox, err = exec.LookPath("busybox"); err != nil {
		return fmt.Errorf("make deps: %w", err)
	}
	tests, err := list(ctx)
	if err != nil {
		return err
	}
	tests = slices.DeleteFunc(tests, func(name string) bool { return !only.MatchString(name) })
	if len(tests) == 0 {
		return fmt.Errorf("no test matches %q", *pattern)
	}
	columns, err := measure(ctx, s, strings.Fields(*runtimes), os.Getenv("SHIM_BINARY"), tests)
	if err != nil {
		return err
	}
	printTable(os.Stdout, tests, columns)
	j := judge(tests, columns, s.criu.err, os.Getenv("CI") != "")
	j.print(os.Stdout)
	if len(j.failures) > 0 {
		return fmt.Errorf("%d failures; the tests' output is in %s", len(j.failures), *logs)
	}
	return nil
}

// measure runs the tests with one runtime after the other. The machine's cgroups are taken for the time.
func measure(
	ctx context.Context, s suite, runtimes []string, shim string, tests []string,
) (columns []column, err error) {
	release, err := takeCgroups()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := os.MkdirAll(s.logs, 0o755); err != nil {
		return nil, err
	}
	for _, name := range runtimes {
		c := column{runtime: name}
		switch name {
		case harness.Ours:
			if shim == "" {
				return nil, errors.New("SHIM_BINARY is not set: make conformance does that")
			}
			c.shim, c.leftOut = shim, needRunc()
		case baseline:
			c.shim = filepath.Join(s.tools, "containerd-shim-runc-v2")
		default:
			return nil, fmt.Errorf("runtime %q: want %s or %s", name, baseline, harness.Ours)
		}
		if c.results, err = s.run(ctx, c, tests); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		columns = append(columns, c)
	}
	return columns, nil
}

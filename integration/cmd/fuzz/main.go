// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs the fuzz targets of the shim's module, one after the other, each for the same part of a time. It
// finds them in the tree, so that there is no list to forget one in. In the end it prints what each target did, and all
// together; -o adds that to what earlier runs did, and -write puts the sum into a page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"sandbox.internal/shim/integration/section"
)

// leastTime is what a target needs to try its corpus and a few inputs more.
const leastTime = 2 * time.Second

type settings struct {
	dir      string // of the module
	tags     string
	work     string // directory for the test binaries
	parallel int    // workers of a target
	each     time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var s settings
	flag.StringVar(&s.dir, "C", "..", "directory of the module")
	flag.StringVar(&s.tags, "tags", "seccomp", "build tags")
	flag.IntVar(&s.parallel, "parallel", runtime.NumCPU(), "workers of a target")
	total := flag.Duration("time", time.Minute, "time of all targets together; each has at least "+leastTime.String())
	only := flag.String("run", ".", "expression for package.target")
	output := flag.String("o", "", "file with the totals of all runs, which this one is added to")
	page := flag.String("write", "", "page whose section `fuzz` says the totals of -o")
	list := flag.Bool("list", false, "only list the targets")
	flag.Parse()
	if *page != "" && *output == "" {
		return errors.New("-write: say -o, of which the page is made")
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	targets, err := find(ctx, s, wanted)
	if err != nil {
		return err
	}
	if *list {
		for _, t := range targets {
			fmt.Println(t)
		}
		return nil
	}
	if len(targets) == 0 {
		return fmt.Errorf("no target matches %q", *only)
	}
	if s.work, err = os.MkdirTemp("", "fuzz-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.work)) }()
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	s.each = max(leastTime, *total/time.Duration(len(targets)))
	done := results{}
	var failed []error
	for _, t := range targets {
		if ctx.Err() != nil {
			break // what was done until now counts
		}
		r, err := s.fuzz(ctx, t)
		done[t.String()] = r
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t, err))
		}
	}
	done.print(os.Stdout)
	if *output != "" {
		totals, err := done.addTo(*output)
		if err == nil && *page != "" {
			err = section.Rewrite(*page, "fuzz", func(string) string { return totals.sentences() })
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

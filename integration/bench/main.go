// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/section"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	settings
	rows    string
	tools   string
	shim    string
	against string
	crun    bool
	json    string
	from    string
	page    string
	section string

	progress  io.Writer
	isolation *cri.Isolation
}

func parse() (c config, err error) {
	c.progress, c.tools, c.shim = os.Stderr, os.Getenv("SHIM_TOOLS"), os.Getenv("SHIM_BINARY")
	flag.IntVar(&c.Runs, "runs", 1, "how often to measure everything")
	flag.IntVar(&c.Rounds, "n", 30,
		"rounds of what takes milliseconds; execs, stats calls and second containers are multiples")
	flag.StringVar(&c.rows, "rows", "",
		"groups of rows to measure, separated by commas; all of these by default:"+describe(groups()))
	flag.IntVar(&c.Containers, "containers", 100, "containers at once")
	flag.IntVar(&c.Dense, "dense", 100, "pods of the density rows, 50 in a shim")
	flag.IntVar(&c.Probed, "probes", 50, "containers of the exec storm")
	flag.DurationVar(&c.Storm, "storm", time.Minute, "how long the exec storm takes for each runtime, in six turns")
	flag.DurationVar(&c.Idle, "idle", 10*time.Second, "how long an idle shim is watched, three times for each")
	flag.StringVar(&c.json, "json", "", "write all samples to this `file`")
	flag.StringVar(&c.from, "from", "", "measure nothing; read what -json wrote to this `file`")
	flag.StringVar(&c.page, "write", "", "put the table into this `page`, docs/performance.md")
	flag.StringVar(&c.section, "section", "native", "`name` of the part of the page")
	flag.StringVar(&c.against, "against", "",
		"an earlier build of the shim, as `path`, in place of the runc shim: no row may be worse by more than 3 %")
	flag.BoolVar(&c.crun, "crun", true, "measure crun too, where it is installed")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return c, fmt.Errorf("%q: only flags are taken", flag.Args())
	case c.from != "":
		return c, nil
	case c.tools == "" || c.shim == "":
		return c, errors.New("SHIM_TOOLS and SHIM_BINARY must be set: make bench does that")
	case c.against != "" && (filepath.Base(c.against) != filepath.Base(c.shim) || c.page != ""):
		return c, fmt.Errorf("-against %q: must be a file named %s, and goes without -write", c.against,
			filepath.Base(c.shim))
	}
	return c, nil
}

func run() error {
	c, err := parse()
	if err != nil {
		return err
	}
	var r *report
	if c.from != "" {
		r, err = load(c.from)
	} else {
		r, err = isolated(c)
	}
	if r == nil {
		return err
	}
	r.markdown(os.Stdout)
	if c.json != "" {
		err = errors.Join(err, r.save(c.json))
	}
	if c.page != "" && err == nil {
		err = section.Rewrite(c.page, "bench:"+c.section, func(string) string { return r.page() })
	}
	return err
}

// isolated measures in namespaces of the program's own, as pods need them: it begins by running the program once more.
func isolated(c config) (r *report, err error) {
	if c.isolation, err = cri.Isolate(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.isolation.Close()) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return measure(ctx, c)
}

// measure starts what is needed, measures and ends it. There may be a report and an error: what failed has no
// samples, or few, and what was left behind is gone.
func measure(ctx context.Context, c config) (r *report, err error) {
	chosen, err := choose(groups(), c.rows)
	if err != nil {
		return nil, err
	}
	if c.against != "" {
		setTargets(chosen, target{Ratio: noWorse})
	}
	all := subjects(c)
	if c.crun && c.against == "" && !slices.ContainsFunc(all, func(s *subject) bool { return s.name == crun }) {
		fmt.Fprintln(c.progress, "bench: LEFT OUT: crun: not installed (apt-get install crun)")
	}
	if err := readAnew(all); err != nil {
		return nil, err
	}
	r = newReport(c.settings, all, chosen)
	if r.Machine, err = readMachine(ctx, c.tools, all); err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.host, err = start(ctx, c.tools, s.shim, s.v1Only); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		defer func() {
			if e := s.host.stop(); e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", s.name, e))
			}
		}()
	}
	b := &bench{
		settings: c.settings, subjects: all, tools: c.tools, isolation: c.isolation, report: r,
		progress: c.progress,
	}
	for b.run = range c.Runs {
		err = errors.Join(err, b.measure(ctx, chosen))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	r.Minutes = time.Since(r.Begun).Minutes()
	r.conclude()
	return r, err
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command campaign drives a containerd and its shims with operations and faults that a seed chooses, for as long as it
// is told to, and checks every answer, every event, and that nothing is left behind. Package campaign says how.
//
//	campaign [-seed N] [-length 10m] [-workers 4] [-mix shim=20,pod=0] [-state FILE]
//	campaign -replay FILE [-times 20]
//	campaign -table -results FILE [-write PAGE]
//
// With -results, the totals of a run become a line of a file, behind those of earlier runs. -table makes the table of
// all of them.
//
// It can be ended by an interrupt at any time; with the same -state it goes on where it was. After a failure it prints
// seed and step and the fewest steps that still fail, and writes them to a file for -replay. A shim that is not this
// project's (-runtime io.containerd.runc.v2) goes on after a failure: what it breaks is counted.
//
// Each worker is a process. It ends when its standard input does, which is when this program ends, and reports on its
// standard output.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/campaign"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// settings are what the flags say.
type settings struct {
	seed      uint64
	length    time.Duration
	workers   int
	runtime   string
	mix       campaign.Mix
	keepGoing bool
	shrink    time.Duration
	state     string
	results   string
	page      string
	failures  string
	replay    string
	times     int
	table     bool
	trace     bool

	origin        campaign.Origin // of the run
	worker, first int             // of the process of a worker
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

func parse() (s settings, err error) {
	s.mix = campaign.DefaultMix()
	flag.Uint64Var(&s.seed, "seed", 1, "what all choices follow from")
	flag.DurationVar(&s.length, "length", 0, "how long this run takes; without limit when 0")
	flag.IntVar(&s.workers, "workers", 4, "how many workers there are, each with a containerd of its own")
	flag.StringVar(&s.runtime, "runtime", harness.Ours, "the shim to test")
	flag.Var(&s.mix, "mix", "how many of a thousand steps are what; length is that of a burst or a batch")
	flag.BoolVar(&s.keepGoing, "keep-going", false, "count what is wrong and go on, as with a shim of others")
	flag.DurationVar(&s.shrink, "shrink", 5*time.Minute, "how long to look for fewer steps after a failure")
	flag.StringVar(&s.state, "state", "", "`file` in which the campaign is continued")
	flag.StringVar(&s.results, "results", "", "add the totals to this `file`, as a line of JSON")
	flag.BoolVar(&s.table, "table", false, "print the table of the totals in -results")
	flag.StringVar(&s.page, "write", "", "with -table, write the table into this `page`")
	flag.StringVar(&s.failures, "failures", "", "write failures into this `directory`; the current one by default")
	flag.StringVar(&s.replay, "replay", "", "do the steps of a failure in this `file`")
	flag.IntVar(&s.times, "times", 10, "how often -replay does the steps, unless they fail")
	flag.BoolVar(&s.trace, "trace", false, "print each step with its answer")
	flag.IntVar(&s.worker, "worker", -1, "number of the worker that this process is: how the program calls itself")
	flag.IntVar(&s.first, "first", 0, "round with which that worker begins")
	flag.Parse()
	s.keepGoing = s.keepGoing || s.runtime != harness.Ours
	switch {
	case flag.NArg() > 0:
		return s, fmt.Errorf("%q: only flags are taken", flag.Args())
	case s.table && s.results == "", s.page != "" && !s.table:
		return s, errors.New("-table needs -results, and -write needs -table")
	case s.workers < 1 || s.times < 1:
		return s, errors.New("-workers and -times must be at least 1")
	}
	return s, nil
}

func run() error {
	s, err := parse()
	if err != nil {
		return err
	}
	if s.table {
		return table(s)
	}
	// What harness reads.
	if err := os.Setenv("SHIM_TEST_RUNTIME", s.runtime); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	programs, err := harness.Require(ctx)
	if err != nil {
		return err
	}
	switch {
	case s.replay != "":
		return replay(ctx, s, programs)
	case s.worker >= 0:
		return work(ctx, s, programs)
	}
	if s.origin, err = campaign.ReadOrigin(ctx, programs); err != nil {
		return err
	}
	return drive(ctx, s, programs)
}

// table prints the sums of the totals that are kept, and writes them into a page.
func table(s settings) error {
	list, err := campaign.Load(s.results)
	if err != nil {
		return err
	}
	text := campaign.Table(campaign.Sum(list)...)
	fmt.Print(text)
	if s.page == "" {
		return nil
	}
	return section.Rewrite(s.page, "campaign", func(string) string { return text })
}

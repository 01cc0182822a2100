// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command campaign drives a containerd and its shims with operations and faults that a seed chooses, for as long as it
// is told to, and checks every answer, every event, and that nothing is left behind. Package campaign says how.
//
//	campaign [-seed N] [-length 10m] [-workers 4] [-mix shim=20,pod=0] [-state FILE] [-o FILE]
//	campaign -replay FILE [-times 20]
//	campaign -add [-write PAGE] FILE...
//
// With -results, the totals of a run are kept in a directory, beside those of earlier runs; with -write, the table of a
// page is made of all that is there.
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
	"path/filepath"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/campaign"
	"sandbox.internal/shim/integration/harness"
)

// settings are what the flags say.
type settings struct {
	seed       uint64
	length     time.Duration
	containers int
	execs      int
	workers    int
	runtime    string
	mix        campaign.Mix
	keepGoing  bool
	shrink     time.Duration
	state      string
	out        string
	results    string
	page       string
	failures   string
	replay     string
	times      int
	add        bool
	trace      bool

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
	flag.IntVar(&s.containers, "containers", 0, "end after so many containers, with those of earlier runs of -state")
	flag.IntVar(&s.execs, "execs", 0, "end after so many execs, with those of earlier runs of -state")
	flag.IntVar(&s.workers, "workers", 4, "how many workers there are, each with a containerd of its own")
	flag.StringVar(&s.runtime, "runtime", harness.Ours, "the shim to test")
	flag.Var(&s.mix, "mix", "how many of a thousand steps are what; length is that of a burst or a batch")
	flag.BoolVar(&s.keepGoing, "keep-going", false, "count what is wrong and go on, as with a shim of others")
	flag.DurationVar(&s.shrink, "shrink", 5*time.Minute, "how long to look for fewer steps after a failure")
	flag.StringVar(&s.state, "state", "", "`file` in which the campaign is continued")
	flag.StringVar(&s.out, "o", "", "write the totals to this `file`")
	flag.StringVar(&s.results, "results", "", "keep the totals in this `directory`, in a file of this run")
	flag.StringVar(&s.page, "write", "", "write the totals of -results, or of -add, into the table of this `page`")
	flag.StringVar(&s.failures, "failures", "", "write failures into this `directory`; the current one by default")
	flag.StringVar(&s.replay, "replay", "", "do the steps of a failure in this `file`")
	flag.IntVar(&s.times, "times", 10, "how often -replay does the steps, unless they fail")
	flag.BoolVar(&s.add, "add", false, "add up the totals in the files that are named")
	flag.BoolVar(&s.trace, "trace", false, "print each step with its answer")
	flag.IntVar(&s.worker, "worker", -1, "number of the worker that this process is: how the program calls itself")
	flag.IntVar(&s.first, "first", 0, "round with which that worker begins")
	flag.Parse()
	s.keepGoing = s.keepGoing || s.runtime != harness.Ours
	switch {
	case s.add && flag.NArg() == 0:
		return s, errors.New("-add: name the files that -o has written")
	case !s.add && flag.NArg() > 0:
		return s, fmt.Errorf("%q: only flags are taken", flag.Args())
	case s.page != "" && s.results == "" && !s.add:
		return s, errors.New("-write: say -results or -add, of which the page is made")
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
	if s.add {
		return add(s, flag.Args())
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

// add prints the sums of totals, and writes them into a page.
func add(s settings, files []string) error {
	var parts []campaign.Totals
	for _, name := range files {
		t, err := campaign.Load(name)
		if err != nil {
			return err
		}
		parts = append(parts, t)
	}
	campaign.WriteTable(os.Stdout, campaign.Sum(parts)...)
	if s.page == "" {
		return nil
	}
	return campaign.WritePage(s.page, campaign.Sum(parts)...)
}

// keep writes the totals of a run where it was told to.
func keep(s settings, t campaign.Totals) error {
	var err error
	if s.out != "" {
		err = t.Save(s.out)
	}
	if s.results == "" {
		return err
	}
	if t.Operations > 0 { // it may have been ended before that
		err = errors.Join(err, os.MkdirAll(s.results, 0o755), t.Save(filepath.Join(s.results, t.FileName())))
	}
	if s.page == "" {
		return err
	}
	all, e := campaign.LoadAll(s.results)
	if err = errors.Join(err, e); err != nil {
		return err
	}
	return campaign.WritePage(s.page, campaign.Sum(all)...)
}

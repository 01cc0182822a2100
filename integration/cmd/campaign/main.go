// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command campaign drives a containerd and its shims with operations and faults that a seed chooses, for as long as it
// is told to, and checks every answer, every event, and that nothing is left behind. Package campaign says how.
//
//	campaign [-seed N] [-length 10m] [-workers 4] [-mix '{"shim":20,"pod":0}'] [-results FILE]
//	campaign -replay FILE [-times 20]
//
// At its end, and at an interrupt, it prints what it did and found as a line of JSON, which -results adds to a file.
// After a failure it prints seed and step, and writes the steps to a file for -replay, of which any may be left out. A
// shim that is not this project's (-runtime io.containerd.runc.v2) goes on after a failure: what it breaks is counted.
//
// Each worker is a process. It ends when its standard input does, which is when this program ends, and reports on its
// standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/campaign"
	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// settings are what the flags say.
type settings struct {
	seed      uint64
	length    time.Duration
	workers   int
	runtime   string
	mix       campaign.Mix
	keepGoing bool
	results   string
	failures  string
	replay    string
	times     int
	trace     bool
	worker    int // of the process of a worker
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

func parse() (s settings) {
	s.mix = campaign.DefaultMix()
	flag.Uint64Var(&s.seed, "seed", 1, "what all choices follow from")
	flag.DurationVar(&s.length, "length", 0, "how long this run takes; without limit when 0")
	flag.IntVar(&s.workers, "workers", 4, "how many workers there are, each with a containerd of its own")
	flag.StringVar(&s.runtime, "runtime", harness.Ours, "the shim to test")
	flag.Var(&s.mix, "mix", "`JSON` that says how many of a thousand steps are what; length is that of a burst or a batch")
	flag.BoolVar(&s.keepGoing, "keep-going", false, "count what is wrong and go on, as with a shim of others")
	flag.StringVar(&s.results, "results", "", "add what was done and found to this `file`, as a line of JSON")
	flag.StringVar(&s.failures, "failures", "", "write failures into this `directory`; the current one by default")
	flag.StringVar(&s.replay, "replay", "", "do the steps of a failure in this `file`")
	flag.IntVar(&s.times, "times", 10, "how often -replay does the steps, unless they fail")
	flag.BoolVar(&s.trace, "trace", false, "print each step with its answer")
	flag.IntVar(&s.worker, "worker", -1, "number of the worker that this process is: how the program calls itself")
	flag.Parse()
	s.keepGoing = s.keepGoing || s.runtime != harness.Ours
	return s
}

func run() error {
	s := parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("%q: only flags are taken", flag.Args())
	}
	// What harness reads.
	if err := os.Setenv("SHIM_TEST_RUNTIME", s.runtime); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	programs, err := harness.Require(ctx)
	switch {
	case err != nil:
		return err
	case s.replay != "":
		return replay(ctx, s, programs)
	case s.worker >= 0:
		return work(ctx, s, programs)
	}
	return drive(ctx, s, programs)
}

// isolated makes the worker of this process, in namespaces of its own: that begins by running the program once more.
func isolated(s settings, programs harness.Env, use func(campaign.Worker) error) (err error) {
	isolation, err := cri.Isolate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, isolation.Close()) }()
	w := campaign.Worker{
		Programs: programs, Isolation: isolation, Seed: s.seed, Number: s.worker, Mix: s.mix, KeepGoing: s.keepGoing,
	}
	if s.trace {
		w.Trace = os.Stderr
	}
	return use(w)
}

// work is the process of a worker.
func work(ctx context.Context, s settings, programs harness.Env) error {
	return isolated(s, programs, func(w campaign.Worker) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with the process
			_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that comes
			cancel()
		}()
		reports := json.NewEncoder(os.Stdout)
		return w.Work(ctx, func(r campaign.Report) {
			if err := reports.Encode(r); err != nil { // nobody is there any more
				cancel()
			}
		})
	})
}

// replay does the steps of a failure again.
func replay(ctx context.Context, s settings, programs harness.Env) error {
	var f campaign.Failure
	text, err := os.ReadFile(s.replay)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return fmt.Errorf("-replay: %w", err)
	}
	return isolated(s, programs, func(w campaign.Worker) error {
		found, err := w.Replay(ctx, f.Steps, s.times)
		if len(found) == 0 {
			fmt.Printf("%d steps did not fail in %d times\n", len(f.Steps), s.times)
			return err
		}
		f.Violations = found
		return errors.New(f.String())
	})
}

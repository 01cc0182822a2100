// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command campaign drives a containerd and its shims with operations and faults that a seed chooses, for as long as it
// is told to, and checks every answer, every event, and that nothing is left behind. Package campaign says how. Several
// may run at the same time.
//
//	campaign [-seed N] [-length 10m] [-mix '{"shim":20,"pod":0}'] [-results FILE]
//	campaign -replay FILE [-times 20]
//
// After each round, and at an interrupt, it prints what it did and found so far as a line of JSON. -results adds the
// last one to a file. After a failure it prints seed and step, and writes the steps to a file for -replay, of which any
// may be left out. A shim that is not this project's (-runtime io.containerd.runc.v2) goes on after a failure: what it
// breaks is counted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"sandbox.internal/shim/integration/campaign"
	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	w := campaign.Worker{Mix: campaign.DefaultMix()}
	flag.Uint64Var(&w.Seed, "seed", 1, "what all choices follow from")
	flag.Var(&w.Mix, "mix", "`JSON` that says how many of a thousand steps are what; length is that of a burst or a batch")
	flag.BoolVar(&w.KeepGoing, "keep-going", false, "count what is wrong and go on, as with a shim of others")
	length := flag.Duration("length", 0, "how long this run takes; without limit when 0")
	runtime := flag.String("runtime", harness.Ours, "the shim to test")
	results := flag.String("results", "", "add what was done and found to this `file`, as a line of JSON")
	failures := flag.String("failures", ".", "write failures into this `directory`")
	steps := flag.String("replay", "", "do the steps of a failure in this `file`")
	times := flag.Int("times", 10, "how often -replay does the steps, unless they fail")
	trace := flag.Bool("trace", false, "print each step with its answer")
	flag.Parse()
	if *trace {
		w.Trace = os.Stderr
	}
	w.KeepGoing = w.KeepGoing || *runtime != harness.Ours
	// This begins by running the program once more, in namespaces of its own.
	if w.Isolation, err = cri.Isolate(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Isolation.Close()) }()
	if err := os.Setenv("SHIM_TEST_RUNTIME", *runtime); err != nil { // which harness reads
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if w.Programs, err = harness.Require(ctx); err != nil {
		return err
	}
	if *steps != "" {
		return replay(ctx, w, *steps, *times)
	}
	if *length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *length)
		defer cancel()
	}
	return drive(ctx, w, *results, *failures)
}

// drive does rounds, and tells what they did and found.
func drive(ctx context.Context, w campaign.Worker, results, failures string) error {
	result, err := campaign.NewResult(ctx, w.Programs, w.Seed)
	if err != nil {
		return err
	}
	fmt.Printf("%s, seed %d, mix %v\n", w.Programs.Runtime, w.Seed, &w.Mix)
	if why := campaign.WhyNoLimits(); why != "" {
		fmt.Printf("LEFT OUT: limits, and with them pods, updates and programs that use up what they have, since %s.\n", why)
	}
	var failed error
	err = w.Work(ctx, func(r campaign.Report) {
		result.Totals.Add(r.Totals)
		if f := r.Failure; f != nil {
			name := filepath.Join(failures, fmt.Sprintf("campaign-%d-%d.json", f.Seed, f.Round))
			failed = errors.Join(failed, writeFailure(name, *f))
			fmt.Printf("\n%v-replay %s does them again\n", *f, name)
		}
		fmt.Println(result)
	})
	if results != "" && len(result.Totals) > 0 { // it may have been ended before that
		err = errors.Join(err, result.Append(results))
	}
	if n := result.Totals.Violations(); n > 0 && w.Programs.Runtime == harness.Ours {
		failed = errors.Join(failed, fmt.Errorf("%d violations", n))
	}
	return errors.Join(err, failed)
}

// writeFailure writes a failure for -replay, and the log beside it.
func writeFailure(name string, f campaign.Failure) error {
	log := f.Log
	f.Log = ""
	text, err := json.MarshalIndent(f, "", "  ")
	return errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, append(text, '\n'), 0o644),
		os.WriteFile(strings.TrimSuffix(name, ".json")+".log", []byte(log), 0o644))
}

// replay does the steps of a failure again.
func replay(ctx context.Context, w campaign.Worker, name string, times int) error {
	var f campaign.Failure
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return fmt.Errorf("-replay: %w", err)
	}
	found, err := w.Replay(ctx, f.Steps, times)
	if len(found) == 0 {
		fmt.Printf("%d steps did not fail in %d times\n", len(f.Steps), times)
		return err
	}
	f.Violations = found
	return errors.New(f.String())
}

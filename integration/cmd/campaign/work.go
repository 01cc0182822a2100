// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"sandbox.internal/shim/integration/campaign"
	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// isolated makes the worker of this process, in namespaces of its own: that begins by running the program once more.
func isolated(s settings, programs harness.Env, use func(campaign.Worker) error) (err error) {
	isolation, err := cri.Isolate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, isolation.Close()) }()
	w := campaign.Worker{
		Programs: programs, Isolation: isolation, Seed: s.seed, Number: s.worker, First: s.first, Mix: s.mix,
		KeepGoing: s.keepGoing, Shrink: s.shrink,
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
		found := w.Replay(ctx, f.Steps, s.times)
		if len(found) == 0 {
			fmt.Printf("%d steps did not fail in %d times\n", len(f.Steps), s.times)
			return nil
		}
		f.Violations = found
		return errors.New(f.String())
	})
}

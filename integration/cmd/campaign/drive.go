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
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandbox.internal/shim/integration/campaign"
	"sandbox.internal/shim/integration/harness"
)

// told is what the goroutine of a worker's process passes on: a report, or the end of the process.
type told struct {
	report *campaign.Report
	err    error
}

// driver runs workers.
type driver struct {
	settings
	result campaign.Result
	news   chan told
	stdins []io.Closer // of the workers, whose end ends them
	ended  int         // workers
}

// drive runs the workers until it is time to end, and prints what they did and found.
func drive(ctx context.Context, s settings, programs harness.Env) error {
	d := driver{settings: s, news: make(chan told)}
	var err error
	if d.result, err = campaign.NewResult(ctx, programs, s.seed); err != nil {
		return err
	}
	fmt.Printf("%s, seed %d, %d workers, mix %v\n", s.runtime, s.seed, s.workers, &s.mix)
	if why := campaign.WhyNoLimits(); why != "" {
		fmt.Printf("LEFT OUT: limits, and with them pods, updates and programs that use up what they have, since %s.\n", why)
	}
	for i := range s.workers {
		if err = d.start(i); err != nil {
			break
		}
	}
	if err == nil {
		err = d.follow(ctx)
	}
	for _, stdin := range d.stdins {
		_ = stdin.Close() // it may have ended
	}
	for d.ended < len(d.stdins) {
		err = errors.Join(err, d.take(<-d.news))
	}
	fmt.Println(d.result)
	if s.results != "" && len(d.result.Totals) > 0 { // it may have been ended before that
		err = errors.Join(err, d.result.Append(s.results))
	}
	if n := d.result.Totals.Violations(); err == nil && s.runtime == harness.Ours && n > 0 {
		err = fmt.Errorf("%d violations", n)
	}
	return err
}

// start starts the process of a worker, and the goroutine that reads its reports and waits for its end.
func (d *driver) start(number int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-seed", strconv.FormatUint(d.seed, 10), "-runtime", d.runtime, "-mix", d.mix.String(),
		"-keep-going="+strconv.FormatBool(d.keepGoing),
		"-trace="+strconv.FormatBool(d.trace), "-worker", strconv.Itoa(number))
	cmd.Stderr = os.Stderr
	// An interrupt from the terminal is for this process, which then ends the others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.stdins = append(d.stdins, stdin)
	go func() { // ends with the process, and drive takes what it sends
		for reports := json.NewDecoder(stdout); ; {
			var r campaign.Report
			if reports.Decode(&r) != nil {
				break
			}
			d.news <- told{report: &r}
		}
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("worker %d: %w", number, err)
		}
		d.news <- told{err: err}
	}()
	return nil
}

// follow takes what the workers tell until it is time to end, or one has failed.
func (d *driver) follow(ctx context.Context) error {
	var timeUp <-chan time.Time
	if d.length > 0 {
		timeUp = time.After(d.length)
	}
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for d.ended < d.workers {
		select {
		case t := <-d.news:
			if err := d.take(t); err != nil {
				return err
			}
		case <-tick.C:
			fmt.Println(d.result)
		case <-timeUp:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// take counts what a worker tells. The error says that a worker has failed.
func (d *driver) take(t told) error {
	if t.report == nil {
		d.ended++
		return t.err
	}
	d.result.Totals.Add(t.report.Totals)
	f := t.report.Failure
	if f == nil {
		return nil
	}
	name := filepath.Join(d.failures, fmt.Sprintf("campaign-%d-%d-%d.json", f.Seed, f.Worker, f.Round))
	if err := writeFailure(name, *f); err != nil {
		return err
	}
	if d.keepGoing {
		fmt.Printf("%s: %d violations, the first: %v\n", name, len(f.Violations), f.Violations[0])
		return nil
	}
	fmt.Printf("\n%v-replay %s does them again\n", *f, name)
	return fmt.Errorf("seed %d, worker %d, round %d, step %d", f.Seed, f.Worker, f.Round, f.Step)
}

// writeFailure writes a failure for -replay, and the log beside it.
func writeFailure(name string, f campaign.Failure) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if f.Log != "" {
		if err := os.WriteFile(strings.TrimSuffix(name, ".json")+".log", []byte(f.Log), 0o644); err != nil {
			return err
		}
		f.Log = ""
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

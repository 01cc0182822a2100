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

// process is that of a worker.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // whose end ends it
}

// told is what the goroutine of a worker's process passes on: a report, or the end of the process.
type told struct {
	worker int
	report *campaign.Report
	err    error
}

// drive runs the workers until it is time to end, and prints what they did and found.
func drive(ctx context.Context, s settings, programs harness.Env) error {
	c, err := load(s)
	if err != nil {
		return err
	}
	fmt.Println(c.begin())
	if why := campaign.WhyNoSources(programs); why != "" {
		fmt.Printf("LEFT OUT: containers that follow the CPUs of a source, since %s.\n", why)
	}
	if why := campaign.WhyNoLimits(); why != "" {
		fmt.Printf("LEFT OUT: limits, and with them pods, updates and programs that use up what they have, since %s.\n", why)
	}
	news := make(chan told)
	var workers []*process
	for i := range s.workers {
		p, err := start(s, i, c.Next[i], news)
		if err != nil {
			return errors.Join(err, end(workers, news, c))
		}
		workers = append(workers, p)
	}
	failed := c.follow(ctx, news)
	err = errors.Join(failed, end(workers, news, c))
	fmt.Println()
	fmt.Print(campaign.Table(c.Totals))
	if s.results != "" && c.Totals.Operations > 0 { // it may have been ended before that
		err = errors.Join(err, c.Totals.Append(s.results))
	}
	if err == nil && s.runtime == harness.Ours && c.Totals.Violations() > 0 {
		err = fmt.Errorf("%d violations", c.Totals.Violations())
	}
	return err
}

// start starts the process of a worker, and the goroutine that reads its reports and waits for its end.
func start(s settings, number, first int, news chan<- told) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-seed", strconv.FormatUint(s.seed, 10), "-runtime", s.runtime, "-mix", s.mix.String(),
		"-shrink", s.shrink.String(), "-keep-going="+strconv.FormatBool(s.keepGoing),
		"-trace="+strconv.FormatBool(s.trace),
		"-worker", strconv.Itoa(number), "-first", strconv.Itoa(first))
	cmd.Stderr = os.Stderr
	// An interrupt from the terminal is for this process, which then ends the others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process, and end takes what it sends
		for d := json.NewDecoder(stdout); ; {
			var r campaign.Report
			if d.Decode(&r) != nil {
				break
			}
			news <- told{worker: number, report: &r}
		}
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("worker %d: %w", number, err)
		}
		news <- told{worker: number, err: err}
	}()
	return &process{cmd: cmd, stdin: stdin}, nil
}

// end ends the workers that have not ended, and takes what they still tell.
func end(workers []*process, news <-chan told, c *course) error {
	var err error
	for _, p := range workers {
		_ = p.stdin.Close() // it may have ended
	}
	for c.ended < len(workers) {
		err = errors.Join(err, c.take(<-news))
	}
	return errors.Join(err, c.save())
}

// follow takes what the workers tell until it is time to end, or one has failed.
func (c *course) follow(ctx context.Context, news <-chan told) error {
	var timeUp <-chan time.Time
	if c.settings.length > 0 {
		timeUp = time.After(c.settings.length)
	}
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	var failed error
	for c.ended < c.settings.workers {
		select {
		case t := <-news:
			failed = errors.Join(failed, c.take(t))
			if failed != nil && c.shrinking == 0 {
				return failed
			}
		case <-tick.C:
			c.progress()
		case <-timeUp:
			return failed
		case <-ctx.Done():
			fmt.Println("\nending; the same -state goes on from here")
			return failed
		}
	}
	return failed
}

// take adds what a worker tells to the course. The error says that a worker has failed.
func (c *course) take(t told) error {
	if t.report == nil {
		c.ended++
		if c.failing[t.worker] {
			c.shrinking--
			delete(c.failing, t.worker)
		}
		return t.err
	}
	r := *t.report
	if f := r.Failure; f != nil {
		name := filepath.Join(c.settings.failures, fmt.Sprintf("campaign-%d-%d-%d.json", f.Seed, f.Worker, f.Round))
		if err := writeFailure(name, *f); err != nil {
			return err
		}
		if c.settings.keepGoing {
			fmt.Printf("%s: %d violations, the first: %v\n", name, len(f.Violations), f.Violations[0])
		} else {
			fmt.Printf("\n%v-replay %s does them again\n", *f, name)
		}
		if f.Shrunk {
			return nil
		}
	}
	c.Totals.Add(r.Totals)
	if r.Failure == nil || c.settings.keepGoing {
		c.Next[r.Worker] = r.Round + 1
	} else {
		if c.settings.shrink > 0 {
			c.failing[r.Worker] = true
			c.shrinking++
			fmt.Println("looking for fewer steps")
		}
		return fmt.Errorf("seed %d, worker %d, round %d, step %d", r.Failure.Seed, r.Worker, r.Round, r.Failure.Step)
	}
	return c.save()
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

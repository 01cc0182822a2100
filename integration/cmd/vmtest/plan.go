// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// plan is what is to be run, in a file that the guest reads.
type plan struct {
	Tests []test
	Env   []string
	Logs  string        // directory for them
	Limit time.Duration // of each package
}

// killTime is how long a package that has taken its time may take to print where it hangs.
const killTime = 30 * time.Second

// runPlan runs the tests of one package after the other and reports each. The status is 0 when none failed.
func runPlan(ctx context.Context, name string) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 1, err
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return 1, fmt.Errorf("%s: %w", name, err)
	}
	status := 0
	for _, t := range p.Tests {
		passed, err := p.run(ctx, t)
		if err != nil {
			return 1, err
		}
		if !passed {
			status = 1
		}
	}
	return status, nil
}

// run runs the tests of a package, says how they went and reports whether they passed.
func (p plan) run(ctx context.Context, t test) (bool, error) {
	log, err := os.OpenFile(filepath.Join(p.Logs, strings.ReplaceAll(t.Package, "/", "_")+".log"),
		os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		return false, err
	}
	defer func() { _ = log.Close() }() // the test wrote it, not this file
	ctx, cancel := context.WithTimeout(ctx, p.Limit+killTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.Binary, "-test.v", "-test.paniconexit0", "-test.run="+t.Run,
		"-test.timeout="+p.Limit.String())
	cmd.Dir = t.Dir
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	began := time.Now()
	failure := cmd.Run()
	took := time.Since(began)
	output, err := os.ReadFile(log.Name())
	if err != nil {
		return false, err
	}
	r := summarize(string(output))
	if failure == nil && r.passed == 0 && t.Named {
		failure = fmt.Errorf("no test matches %q", t.Run)
	}
	if failure != nil {
		fmt.Printf("%s\nFAIL\t%s\t%.1fs\t%s: %v\n", r.text, t.Package, took.Seconds(), r, failure)
		return false, nil
	}
	fmt.Printf("ok\t%s\t%.1fs\t%s\n", t.Package, took.Seconds(), r)
	return true, nil
}

// result is what a verbose test says.
type result struct {
	passed, skipped, failed int
	text                    string // without the lines of what passed
}

func (r result) String() string {
	return fmt.Sprintf("%d passed, %d skipped, %d failed", r.passed, r.skipped, r.failed)
}

var (
	outcome  = regexp.MustCompile(`^ *--- (PASS|SKIP|FAIL): `)
	progress = regexp.MustCompile(`^=== `)
)

// summarize counts tests and subtests.
func summarize(output string) result {
	var r result
	var text strings.Builder
	for line := range strings.Lines(output) {
		if m := outcome.FindStringSubmatch(line); m != nil {
			switch m[1] {
			case "PASS":
				r.passed++
				continue
			case "SKIP":
				r.skipped++
			case "FAIL":
				r.failed++
			}
		}
		if !progress.MatchString(line) {
			text.WriteString(line)
		}
	}
	r.text = text.String()
	return r
}

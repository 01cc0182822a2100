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
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	testTimeout = 4 * time.Minute           // of a round, by the suite's own clock; 82 tests take less than two
	patience    = testTimeout + time.Minute // until a round is killed
	parallel    = 4
	lastRound   = 3 // in which a test of races runs again
)

// races are tests that can fail whatever a shim does, and why.
var races = map[string]string{
	// client/events.go, Subscribe, waits for no answer.
	"TestRegressionIssue4769": "its subscription to events may begin after the exit",
}

// suite is what all runs of the tests share.
type suite struct {
	tools   string // directory
	busybox string
	logs    string // directory
	criu    criu
}

// run runs the tests with c's shim in as few rounds as it takes, and returns a result for each.
func (s suite) run(ctx context.Context, c column, tests []string) (map[string]result, error) {
	results := map[string]result{}
	var left []string
	for _, name := range tests {
		if reason, ok := c.leftOut[name]; ok {
			results[name] = result{outcome: none, output: []string{reason}}
			continue
		}
		left = append(left, name)
	}
	for round := 1; len(left) > 0; round++ {
		fmt.Fprintf(os.Stderr, "%s: round %d, %d tests\n", c.runtime, round, len(left))
		log := filepath.Join(s.logs, fmt.Sprintf("%s.%d.log", c.runtime, round))
		if err := s.round(ctx, c, left, log); err != nil {
			return nil, err
		}
		got, err := read(ctx, log)
		if err != nil {
			return nil, err
		}
		var again []string
		for _, name := range left {
			switch res, ok := got[name]; {
			case !ok:
				again = append(again, name)
			case res.outcome == fail && races[name] != "" && round < lastRound:
				fmt.Fprintf(os.Stderr, "%s: %s failed, and runs again: %s\n", c.runtime, name, races[name])
				again = append(again, name)
				results[name] = res
			default:
				results[name] = res
			}
		}
		if len(again) == len(left) && len(got) == 0 {
			return nil, fmt.Errorf("the suite ended before a test began:\n%s", tail(log, 20))
		}
		left = again
	}
	return results, nil
}

// round runs the tests once, in namespaces that end with it, and writes their output to the file log, which tells how
// it ended.
func (s suite) round(ctx context.Context, c column, tests []string, log string) (err error) {
	scratch, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	in, err := s.prepare(c, tests, scratch)
	if err != nil {
		return err
	}
	argument, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode %+v: %w", in, err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	roundCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(roundCtx, "/proc/self/exe", insideArg, string(argument))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Setpgid:    true, // an interrupt from the terminal is for us
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start in namespaces of its own: %w", err)
	}
	_ = cmd.Wait() // a failed test is also an error
	return ctx.Err()
}

// prepare fills the scratch directory and returns the setup of the process in the namespaces.
func (s suite) prepare(c column, tests []string, scratch string) (setup, error) {
	in := setup{
		Scratch: scratch, Tools: s.tools, Busybox: s.busybox, Runtime: c.runtime,
		Args: []string{
			binary, "-test.root", "-test.v=test2json",
			fmt.Sprintf("-test.timeout=%v", testTimeout),
			fmt.Sprintf("-test.parallel=%d", parallel),
			"-test.run=^(" + strings.Join(tests, "|") + ")$",
			"-address", address,
		},
	}
	for _, name := range []string{"run", "lib", "tmp", "bin"} {
		if err := os.Mkdir(filepath.Join(scratch, name), 0o755); err != nil {
			return in, err
		}
	}
	programs := []string{c.shim}
	if s.criu.err == nil {
		programs = append(programs, s.criu.path)
	} else {
		in.Args = append(in.Args, "-no-criu")
	}
	for _, path := range programs { // copied, so that a build in the meantime does not matter
		program, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(scratch, "bin", filepath.Base(path)), program, 0o755)
		}
		if err != nil {
			return in, err
		}
	}
	return in, nil
}

// read returns the results that a round's output tells of.
func read(ctx context.Context, log string) (map[string]result, error) {
	in, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()                                // only read
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t") // -t: with times
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	results, err := parse(events)
	if _, drain := io.Copy(io.Discard, events); err == nil {
		err = drain
	}
	if wait := cmd.Wait(); err == nil {
		err = wait
	}
	return results, err
}

// tail returns the last n lines of the file.
func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(slices.Clone(lines[max(0, len(lines)-n):]), "\n")
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// outcome of a test, in the word that `go test -v` has for it.
type outcome string

const (
	pass outcome = "PASS"
	fail outcome = "FAIL"
	skip outcome = "SKIP"
	none outcome = "-" // left out: see column.leftOut
)

type result struct {
	outcome outcome
	took    time.Duration
	output  []string // lines, those of its subtests included
}

// said is the end of the test's output, without containerd's log.
func (r result) said() []string {
	lines := slices.DeleteFunc(slices.Clone(r.output),
		func(line string) bool { return strings.Contains(line, "log_hook.go:") })
	return lines[max(0, len(lines)-25):]
}

// reason is the last line of a test that was skipped.
func (r result) reason() string {
	for _, line := range slices.Backward(r.output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "---") &&
			!strings.HasPrefix(line, "===") {
			return line
		}
	}
	return "no reason given"
}

// event is a line of `go tool test2json`; `go doc test2json` says what they mean.
type event struct {
	Action  string
	Test    string
	Output  string
	Elapsed float64 // seconds
}

// died is the output of a test that was running when the suite died, without the stack of every goroutine.
func died(output []string) []string {
	if i := slices.IndexFunc(output, func(line string) bool { return strings.HasPrefix(line, "goroutine ") }); i >= 0 {
		output = output[:i]
	}
	return append(slices.Clip(output), "did not end")
}

// parse reads events and returns a result for each test that was run, subtests taken as part of theirs. A test that
// began and did not end, and was not waiting for its turn, was running when the suite died: it failed. A test that
// waited has no result.
func parse(r io.Reader) (map[string]result, error) {
	var (
		results = map[string]result{}
		waiting = map[string]bool{}
		d       = json.NewDecoder(r)
	)
	for {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read test events: %w", err)
		}
		name, _, sub := strings.Cut(e.Test, "/")
		if name == "" {
			continue
		}
		res := results[name]
		switch {
		case e.Action == "output":
			res.output = append(res.output, strings.TrimRight(e.Output, "\n"))
		case sub:
		case e.Action == "pass", e.Action == "fail", e.Action == "skip":
			res.outcome = outcome(strings.ToUpper(e.Action))
			res.took = time.Duration(e.Elapsed * float64(time.Second))
		case e.Action == "run", e.Action == "cont", e.Action == "pause":
			waiting[name] = e.Action == "pause"
		}
		results[name] = res
	}
	for name, res := range results {
		switch {
		case res.outcome != "":
		case waiting[name]:
			delete(results, name)
		default:
			res.outcome, res.output = fail, died(res.output)
			results[name] = res
		}
	}
	return results, nil
}

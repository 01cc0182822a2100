// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sandbox.internal/shim/integration/harness"
)

// baseline is the runtime that ours is compared with.
const baseline = "io.containerd.runc.v2"

// column is a runtime with its results.
type column struct {
	runtime string
	shim    string            // binary
	leftOut map[string]string // tests that are not run, and why
	results map[string]result
}

// needRunc lists the tests that a shim without a runc binary cannot pass. Each makes containerd's shim call runc-fp, a
// runc that misbehaves on purpose. We call no runtime binary: Options.BinaryName is accepted and has no effect.
func needRunc() map[string]string {
	return map[string]string{
		"TestIssue9103":  "has runc-fp, in runc's place, kill a container's init; this shim calls no runtime binary",
		"TestIssue10589": "has runc-fp, in runc's place, delay an exec; this shim calls no runtime binary",
	}
}

func (c column) count(o outcome) int {
	n := 0
	for _, res := range c.results {
		if res.outcome == o {
			n++
		}
	}
	return n
}

// printTable shows every test with its outcome per runtime, then the sums.
func printTable(w io.Writer, tests []string, columns []column) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "test")
	for _, c := range columns {
		fmt.Fprint(t, "\t", strings.TrimPrefix(c.runtime, "io.containerd."))
	}
	fmt.Fprintln(t)
	for _, name := range tests {
		fmt.Fprint(t, name)
		for _, c := range columns {
			res := c.results[name]
			cell := string(res.outcome)
			if res.outcome == pass || res.outcome == fail {
				cell += fmt.Sprintf("%7.2fs", res.took.Seconds())
			}
			fmt.Fprint(t, "\t", cell)
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // to a person's terminal
	fmt.Fprintln(w)
	for _, c := range columns {
		fmt.Fprintf(w, "%s: %d passed, %d failed, %d skipped, %d left out\n", c.runtime, c.count(pass), c.count(fail),
			c.count(skip), c.count(none))
	}
}

// judgement is what the results mean, a line for each test. A note is for a person; a failure fails the run.
type judgement struct{ notes, failures []string }

// judge compares our column with the baseline's. noCRIU is why checkpoint tests could not run on this machine, or nil.
// With strict, as in CI, a test that was skipped for another reason fails, and so does one that fails with both.
func judge(tests []string, columns []column, noCRIU error, strict bool) judgement {
	var j judgement
	for _, c := range columns {
		if c.count(pass) == 0 && c.count(fail) > 0 {
			j.failures = append(j.failures, c.runtime+": passes no test: is it the machine?")
		}
	}
	ours, theirs := find(columns, harness.Ours), find(columns, baseline)
	if ours.runtime == "" {
		return j
	}
	for _, name := range tests {
		res, measure := ours.results[name], theirs.results[name].outcome
		to, text := &j.notes, ""
		switch {
		case res.outcome == pass:
			continue
		case res.outcome == fail && measure == fail:
			text = "fails, also with the runc shim: is it the machine?"
			if strict {
				to = &j.failures
			}
		case res.outcome == fail:
			to, text = &j.failures, "fails:\n    "+strings.Join(res.said(), "\n    ")
		case res.outcome == skip && noCRIU != nil && strings.HasPrefix(name, "TestCheckpoint"):
			text = fmt.Sprintf("was not run, no criu that works here: %v", noCRIU)
		case res.outcome == skip && (strict || measure == pass):
			to, text = &j.failures, "was skipped: "+res.reason()
		default:
			text = "was not run: " + res.reason()
		}
		*to = append(*to, name+": "+text)
	}
	return j
}

func find(columns []column, name string) column {
	for _, c := range columns {
		if c.runtime == name {
			return c
		}
	}
	return column{}
}

func (j judgement) print(w io.Writer) {
	for _, note := range j.notes {
		fmt.Fprintln(w, "note:", note)
	}
	for _, failure := range j.failures {
		fmt.Fprintln(w, "FAILURE:", failure)
	}
}

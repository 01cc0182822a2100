// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// outcomes is a column of one test, and of one that passes.
func outcomes(runtime string, o outcome) column {
	return column{runtime: runtime, results: map[string]result{
		"TestCheckpointA": {outcome: o, output: []string{"said so"}},
		"TestB":           {outcome: pass},
	}}
}

func TestJudge(t *testing.T) {
	noCRIU := errors.New("too old")
	for _, tc := range []struct {
		name         string
		theirs, ours outcome // theirs may be absent: ""
		noCRIU       error
		strict       bool
		fails        bool
		says         string
	}{
		{name: "a test that passes with both is not worth a word", theirs: pass, ours: pass},
		{name: "a test that fails here and passes there fails", theirs: pass, ours: fail, fails: true, says: "said so"},
		{name: "a test that fails here and was skipped there fails", theirs: skip, ours: fail, fails: true, says: "said so"},
		{name: "a test that fails with both is noted", theirs: fail, ours: fail, says: "also with the runc shim"},
		{name: "a test that fails with both fails in CI", theirs: fail, ours: fail, strict: true, fails: true, says: "also with the runc shim"},
		{name: "a test that fails there only is not worth a word", theirs: fail, ours: pass},
		{name: "a test that is skipped here and passes there fails", theirs: pass, ours: skip, fails: true, says: "skipped: said so"},
		{name: "a test that is skipped with both is noted", theirs: skip, ours: skip, says: "not run: said so"},
		{name: "a test that is skipped with both fails in CI", theirs: skip, ours: skip, strict: true, fails: true, says: "skipped"},
		{name: "a checkpoint test without criu is noted, also in CI", theirs: skip, ours: skip, noCRIU: noCRIU, strict: true, says: "too old"},
		{name: "a test that is left out is noted, also in CI", theirs: pass, ours: none, strict: true, says: "not run: said so"},
		{name: "a failure without a baseline fails", ours: fail, fails: true, says: "said so"},
		{name: "a skip without a baseline is noted", ours: skip, says: "not run: said so"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			columns := []column{outcomes(harness.Ours, tc.ours)}
			if tc.theirs != "" {
				columns = append(columns, outcomes(baseline, tc.theirs))
			}
			got := judge([]string{"TestCheckpointA", "TestB"}, columns, tc.noCRIU, tc.strict)
			if failed := len(got.failures) > 0; failed != tc.fails {
				t.Errorf("failures = %q, want some: %v", got.failures, tc.fails)
			}
			text := strings.Join(append(got.notes, got.failures...), "\n")
			if !strings.Contains(text, tc.says) || (tc.says == "") != (text == "") {
				t.Errorf("said %q, want %q in it", text, tc.says)
			}
		})
	}
}

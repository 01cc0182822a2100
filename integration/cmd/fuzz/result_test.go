// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResult_ReadsTheLastLine(t *testing.T) {
	var r result
	for line := range strings.Lines(`fuzz: elapsed: 0s, gathering baseline coverage: 0/202 completed
fuzz: elapsed: 0s, gathering baseline coverage: 202/202 completed, now fuzzing with 2 workers
fuzz: elapsed: 3s, execs: 325017 (108336/sec), new interesting: 11 (total: 213)
fuzz: elapsed: 1m2s, execs: 680218 (118402/sec), new interesting: 16 (total: 218)
PASS
`) {
		r.read(strings.TrimSpace(line))
	}
	if want := (result{Executions: 680218, Seconds: 62, New: 16, Corpus: 218}); r != want {
		t.Errorf("read %+v, want %+v", r, want)
	}
}

func TestResult_TellsAFailedInputFromALateEnd(t *testing.T) {
	const begin = "fuzz: elapsed: 37s, execs: 12 (0/sec), new interesting: 1 (total: 2)\n--- FAIL: FuzzA (37.01s)\n"
	for _, tc := range []struct {
		name, output string
		late         bool
	}{
		{"a late end", begin + "    context deadline exceeded\nFAIL\n", true},
		{"an input", begin + "    --- FAIL: FuzzA (0.00s)\n        a_test.go:1: context deadline exceeded\n    \n" +
			"    Failing input written to testdata/fuzz/FuzzA/1\n    To re-run:\n    go test -run=FuzzA/1\nFAIL\n", false},
		{"a worker that hangs", begin + "    fuzzing process hung or terminated unexpectedly: exit status 2\n" +
			"    Failing input written to testdata/fuzz/FuzzA/1\nFAIL\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r result
			if late := r.readAll(strings.NewReader(tc.output), io.Discard); late != tc.late || r.Executions != 12 {
				t.Errorf("late = %t, %d executions, want %t and 12", late, r.Executions, tc.late)
			}
		})
	}
}

func TestResults_AddUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "totals.json")
	first := results{"a.FuzzA": {Executions: 5, Seconds: 1, New: 2, Corpus: 7, Runs: 1, Found: true}}
	second := results{
		"a.FuzzA": {Executions: 6, Seconds: 2, New: 1, Corpus: 8, Runs: 1}, "b.FuzzB": {Executions: 1, Corpus: 1, Runs: 1},
	}
	for _, r := range []results{first, second} {
		if _, err := r.addTo(file); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got results
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := results{
		"a.FuzzA": {Executions: 11, Seconds: 3, New: 3, Corpus: 8, Runs: 2, Found: true},
		"b.FuzzB": {Executions: 1, Corpus: 1, Runs: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if sum := got.sum(); sum.Executions != 12 || sum.Corpus != 9 {
		t.Errorf("sum = %+v, want 12 executions and 9 inputs", sum)
	}
}

func TestResults_AreSaidInSentences(t *testing.T) {
	r := results{
		"a.FuzzA": {Executions: 1_000_000_000, Seconds: 7200}, "b.FuzzB": {Executions: 1234, Seconds: 1800},
	}
	want := "2 targets, 1,000,001,234 executions in 2.5 hours. The fewest had FuzzB of `b`: 1,234. " +
		"Targets that found an input that failed: none.\n"
	if got := r.sentences(); got != want {
		t.Errorf("sentences = %q, want %q", got, want)
	}
	r["a.FuzzA"] = result{Executions: 1, Found: true}
	if got, want := r.sentences(), "failed: FuzzA of `a`.\n"; !strings.HasSuffix(got, want) {
		t.Errorf("sentences = %q, want %q at the end", got, want)
	}
}

// A target that the expression does not find would never run.
func TestFind_FindsEveryTargetOfTheTree(t *testing.T) {
	const root = "../../.."
	targets, err := find(t.Context(), settings{dir: root, tags: "seccomp"}, regexp.MustCompile("."))
	if err != nil {
		t.Fatal(err)
	}
	var found, want []string
	for _, f := range targets {
		found = append(found, f.String())
	}
	for _, dir := range []string{"cmd", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for line := range strings.Lines(string(text)) {
				if name, ok := strings.CutPrefix(line, "func Fuzz"); ok {
					name, _, _ = strings.Cut(name, "(")
					pkg, err := filepath.Rel(root, filepath.Dir(path))
					if err != nil {
						return err
					}
					want = append(want, pkg+".Fuzz"+name)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(found)
	slices.Sort(want)
	if diff := cmp.Diff(want, found); diff != "" || len(want) == 0 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

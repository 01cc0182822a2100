// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		name    string
		samples []float64
		want    float64
	}{
		{"none", nil, 0},
		{"one", []float64{3}, 3},
		{"an odd number gives the middle one", []float64{9, 1, 5}, 5},
		{"an even number gives the mean of the middle two", []float64{9, 1, 5, 7}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := median(tt.samples); got != tt.want {
				t.Errorf("median(%v) = %v, want %v", tt.samples, got, tt.want)
			}
		})
	}
}

func TestSumInitAddsTheClockColumn(t *testing.T) {
	const trace = `init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs
init runtime @0.059 ms, 0.026 ms clock, 0 bytes, 0 allocs
runc: some other line
init errors @0.3 ms, 0.5 ms clock, 8 bytes, 1 allocs
`
	if got, ok := sumInit(trace); got != 0.526 || !ok {
		t.Errorf("sumInit = %v, %v, want 0.526, true", got, ok)
	}
	if got, ok := sumInit("crun version 1.8\n"); got != 0 || ok {
		t.Errorf("sumInit of another program = %v, %v, want 0, false", got, ok)
	}
}

func TestTablePrintsMediansAndRatios(t *testing.T) {
	table := newTable([]subject{{name: "ours"}, {name: "theirs"}})
	for _, v := range []float64{1, 2, 30} {
		table.add("exec", "ms", 0, v)
		table.add("exec", "ms", 1, 2*v)
	}
	table.add("init", "ms", 0, 4)
	var out strings.Builder
	table.print(&out)
	want := [][]string{
		{"median", "ours", "theirs", "ratio", "samples"},
		{"exec,", "ms", "2.00", "4.00", "2.00x", "3"},
		{"init,", "ms", "4.00", "-", "-", "1"},
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, line := range lines {
		if got := strings.Fields(line); strings.Join(got, " ") != strings.Join(want[i], " ") {
			t.Errorf("line %d = %q, want %q", i, got, want[i])
		}
	}
}

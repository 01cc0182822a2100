// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestSumInit_AddsTheClockColumn(t *testing.T) {
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

func TestParseUsage(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       int64
		ok         bool
	}{
		{"v1 has a number", "123456789\n", 123456789, true},
		{"v2 has it first", "usage_usec 42\nuser_usec 40\nsystem_usec 2\n", 42, true},
		{"v2 may have it later", "nr_periods 7\nusage_usec 42\n", 42, true},
		{"v2 without it", "user_usec 40\n", 0, false},
		{"nothing", "", 0, false},
		{"no number", "much\n", 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseUsage([]byte(tt.text))
			if got != tt.want || (err == nil) != tt.ok {
				t.Errorf("parseUsage(%q) = %v, %v, want %v, error %v", tt.text, got, err, tt.want, !tt.ok)
			}
		})
	}
}

func TestMachineTime_IsThatWhichIsNotIdle(t *testing.T) {
	for _, tt := range []struct {
		name, stat string
		want       time.Duration
		ok         bool
	}{
		{"all but idle, waiting, stolen and guests", "cpu  1 20 300 4000 50000 6 70 8 9 10\ncpu0 1 1 1 1\n", 3970 * time.Millisecond, true},
		{"no line of all CPUs", "cpu0 1 20 300 4000 50000 6 70\n", 0, false},
		{"too few columns", "cpu  1 20 300 4000\n", 0, false},
		{"no number", "cpu  1 x 300 4000 50000 6 70\n", 0, false},
		{"empty", "", 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseMachineTime(tt.stat)
			if got != tt.want || (err == nil) != tt.ok {
				t.Errorf("parseMachineTime(%q) = %v, %v, want %v, error %v", tt.stat, got, err, tt.want, !tt.ok)
			}
		})
	}
}

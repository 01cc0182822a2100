// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

func TestUsage_WhatGrowsIsFoundAndNoiseIsNot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name  string
		value func(round int) float64 // of descriptors
		want  bool
	}{
		{"constant", func(int) float64 { return 20 }, false},
		{"one for each round", func(round int) float64 { return 20 + float64(round) }, true},
		{"one for every ten rounds", func(round int) float64 { return 20 + float64(round/10) }, true},
		{"noise", func(int) float64 { return 20 + float64(r.IntN(6)) }, false},
		{"what is made at first", func(round int) float64 { return 20 + float64(min(round, 10)) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := usage{}
			for round := range 100 {
				u.add("s", descriptors, float64(round), tt.value(round))
				u.add("s", threads, float64(round), 8)
			}
			if found := u.growing(); (len(found) > 0) != tt.want {
				t.Errorf("growing = %v, want something: %t", found, tt.want)
			}
		})
	}
}

// What is kept is read again, and runs add up by runtime and mode of cgroups.
func TestTotals_AddUp(t *testing.T) {
	name := filepath.Join(t.TempDir(), "totals.jsonl")
	part := func(runtime, cgroup, shim string, seed uint64, operations int) Totals {
		return Totals{
			Runtime: runtime, Seeds: []uint64{seed}, Time: time.Hour, Operations: operations, Found: map[Kind]int{Leak: 1},
			Origins: []Origin{{Shim: shim, Containerd: "2.4.2", Kernel: "6.18", Cgroup: cgroup, CPUs: 2}},
		}
	}
	for _, one := range []Totals{
		part(harness.Ours, "v1, with v2 beside it (hybrid)", "0.1.0+a", 7, 1000),
		part("io.containerd.runc.v2", "v2", "2.4.2", 7, 30),
		part(harness.Ours, "v1, with v2 beside it (hybrid)", "0.1.0+b", 8, 234567),
	} {
		must(t, one.Append(name))
	}
	list, err := Load(name)
	must(t, err)
	sums := Sum(list)
	if len(sums) != 2 || sums[0].Operations != 235567 || sums[0].Time != 2*time.Hour || sums[0].Violations() != 2 {
		t.Fatalf("Sum = %+v, want 235567 operations in 2h0m0s with 2 violations, and another runtime", sums)
	}
	table := Table(sums...)
	for _, want := range []string{
		"| | this shim, cgroup hybrid | runc shim, cgroup v2 |\n|---|---|---|\n| time | 2h0m0s | 1h0m0s |\n| seeds | 7, 8 | 7 |\n",
		"| builds | 0.1.0+a to 0.1.0+b | 2.4.2 |\n", "| operations | 235,567 | 30 |\n", "| leaks | 2 | 1 |\n",
	} {
		if !strings.Contains(strings.Replace(table, "|  |", "| |", 1), want) {
			t.Errorf("the table has no\n%s\nit is\n%s", want, table)
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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

func TestTotals_AddUp(t *testing.T) {
	dir := t.TempDir()
	var parts []Totals
	for i, part := range []Totals{
		{Runtime: "a.b.one", Seeds: []uint64{1}, Containers: 3, Time: time.Minute, Found: map[Kind]int{Leak: 1}},
		{Runtime: "a.b.two", Seeds: []uint64{1}, Containers: 5, Time: time.Minute},
		{Runtime: "a.b.one", Seeds: []uint64{2}, Containers: 4, Time: time.Minute, Found: map[Kind]int{Leak: 2, LostExit: 1}},
	} {
		name := filepath.Join(dir, string(rune('a'+i)))
		if err := part.Save(name); err != nil {
			t.Fatal(err)
		}
		read, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, read)
	}
	sums := Sum(parts)
	if len(sums) != 2 {
		t.Fatalf("Sum = %+v, want two runtimes", sums)
	}
	one := sums[0]
	if one.Containers != 7 || one.Time != 2*time.Minute || one.Found[Leak] != 3 || one.Violations() != 4 ||
		!slices.Equal(one.Seeds, []uint64{1, 2}) {
		t.Errorf("Sum = %+v, want 7 containers, 2m0s, 3 leaks of 4 violations, seeds 1 and 2", one)
	}
	var b strings.Builder
	WriteTable(&b, sums...)
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{"a.b.one a.b.two", " containers, of them in pods 7, 0 5, 0 ", " leaks 3 0 "} {
		if !strings.Contains(text, want) {
			t.Errorf("table has no %q:\n%s", want, b.String())
		}
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of no file = %v, want that it does not exist", err)
	}
}

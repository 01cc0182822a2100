// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"math/rand/v2"
	"testing"
)

func TestUsage_WhatGrowsIsFoundAndNoiseIsNot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name  string
		value func(round int) int // of descriptors
		want  bool
	}{
		{"constant", func(int) int { return 20 }, false},
		{"one for each round", func(round int) int { return 20 + round }, true},
		{"one for every ten rounds", func(round int) int { return 20 + round/10 }, true},
		{"noise", func(int) int { return 20 + r.IntN(6) }, false},
		{"what is made at first", func(round int) int { return 20 + min(round, 10) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := usage{}
			for round := range 100 {
				u.add("s", descriptors, tt.value(round))
				u.add("s", threads, 8)
			}
			if found := u.growing(); (len(found) > 0) != tt.want {
				t.Errorf("growing = %v, want something: %t", found, tt.want)
			}
		})
	}
}

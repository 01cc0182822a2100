// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestTargets(t *testing.T) {
	const none = "none"
	for _, tt := range []struct {
		name   string
		target target
		runs   [][][]float64 // run, column, samples
		want   string
	}{
		{"no target", target{}, [][][]float64{{{10}, {3}}}, none},
		{"reached exactly", target{Ratio: 0.3}, [][][]float64{{{10}, {3}}}, "yes"},
		{"missed", target{Ratio: 0.3}, [][][]float64{{{10}, {3.1}}}, "no"},
		{"missed in the second run", target{Ratio: 0.3}, [][][]float64{{{10}, {3}}, {{10}, {4}}}, "no"},
		{"one lucky sample is not the median", target{Ratio: 0.3}, [][][]float64{{{10, 10, 10}, {1, 5, 5}}}, "no"},
		{"below crun", target{Ratio: 0.3, BelowCrun: true}, [][][]float64{{{10}, {2}, {2.5}}}, "yes"},
		{"above crun", target{Ratio: 0.3, BelowCrun: true}, [][][]float64{{{10}, {2}, {1.5}}}, "no"},
		{"without crun", target{Ratio: 0.3, BelowCrun: true}, [][][]float64{{{10}, {2}}}, "yes"},
		{"crun was not measured", target{Ratio: 0.3, BelowCrun: true}, [][][]float64{{{10}, {2}, nil}}, "yes"},
		{"zero", target{Zero: true}, [][][]float64{{{4}, {0}}}, "yes"},
		{"not zero", target{Zero: true}, [][][]float64{{{4}, {0.1}}}, "no"},
		{"zero, and so is the reference", target{Zero: true}, [][][]float64{{{0}, {0}}}, "yes"},
		{"a figure at its limit", target{Limit: 1.15}, [][][]float64{{nil, {1.15}}}, "yes"},
		{"a figure above its limit, and less than the reference's", target{Limit: 1.15}, [][][]float64{{{3}, {1.2}}}, "no"},
		{"a figure with a limit was not measured", target{Limit: 1.15}, [][][]float64{{{3}, nil}}, none},
		{"not measured", target{Ratio: 0.3}, [][][]float64{{nil, nil}}, none},
		{"zero is not what was not measured", target{Zero: true}, [][][]float64{{{4}, nil}}, none},
		{"no reference", target{Ratio: 0.3}, [][][]float64{{nil, {3}}}, none},
		{"not measured in the second run", target{Ratio: 0.3}, [][][]float64{{{10}, {3}}, {nil, nil}}, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &report{
				Columns: []string{"runc", "sandbox", "crun"}[:len(tt.runs[0])],
				Rows:    []*figure{{row: row{Target: tt.target}, Samples: tt.runs}},
			}
			r.conclude()
			got := none
			if met := r.Rows[0].Met; met != nil {
				got = map[bool]string{true: "yes", false: "no"}[*met]
			}
			if got != tt.want {
				t.Errorf("target %q met: %s, want %s (ratios %v)", tt.target, got, tt.want, r.Rows[0].Ratios)
			}
		})
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// A run is as short as it can be; what stop finds left behind is an error of it.
func TestGroups_EachMeasuresAndLeavesNothing(t *testing.T) {
	env, err := harness.Require(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if env.Runtime != harness.Ours {
		t.Skipf("%s: the bench measures the runc shim itself", env.Runtime)
	}
	var said strings.Builder
	r, err := measure(t.Context(), config{
		tools: env.Tools, shim: env.Shim, progress: &said, isolation: isolation,
		settings: settings{
			Runs: 1, Rounds: 1, Containers: 2, Probed: 2, Storm: stormTurns * probeEvery,
			Idle: time.Second,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	leftOut := func(name string) bool {
		what, _, _ := strings.Cut(name, ",")
		return strings.Contains(said.String(), "LEFT OUT: "+what+":")
	}
	for _, f := range r.Rows {
		for _, column := range []int{reference, ours} {
			ofOurs := f.Name == rowHostRoot || strings.HasPrefix(f.Name, "upgrade of a shim")
			if alone := column == reference && ofOurs; f.Summary[column].N == 0 &&
				!leftOut(f.Name) && !alone {
				t.Errorf("row %q of %s: no sample; bench said\n%s", f.Name, r.Columns[column], said.String())
			}
		}
		// An empty pod without a pause container has no cgroup.
		zero := f.Name == rowWakeups || f.Name == rowStormLate || f.Name == rowKeeping ||
			strings.HasSuffix(f.Name, rowPodCgroups)
		if !zero && f.Summary[ours].N > 0 && f.Summary[ours].Median <= 0 {
			t.Errorf("row %q: median %v of ours", f.Name, f.Summary[ours].Median)
		}
	}
}

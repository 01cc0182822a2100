// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// testLength is how long the rounds of the test go on; the last one may take longer.
var testLength = harness.Slow(90 * time.Second)

// A short part of a campaign, with more faults than usual, always the same: a failure that it shows can be looked at.
func TestCampaign_FindsNothing(t *testing.T) {
	harness.OursOnly(t, "all of P1 to P6")
	mix := DefaultMix()
	mix.Daemon, mix.Shim, mix.Process, mix.Stop, mix.Pod, mix.Upgrade = 6, 12, 30, 12, 8, 30
	mix.Sleep = 60
	sum := Totals{}
	began := time.Now()
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	w := Worker{Programs: programs, Isolation: isolation, Seed: 1, Mix: mix}
	err := w.Work(ctx, func(r Report) {
		sum.Add(r.Totals)
		if r.Failure != nil {
			t.Errorf("%v\n%s", *r.Failure, r.Failure.Log)
		} else if time.Since(began) > testLength {
			enough()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(sum)
	if sum["containers"] == 0 || sum["execs"] == 0 || sum["events"] == 0 || sum["sleeps and wakes by hand"] == 0 ||
		sum["upgrades"] <= sum["upgrades refused"] {
		t.Errorf("totals = %v, want containers, execs, events, sleeps, and more upgrades than are refused", sum)
	}
}

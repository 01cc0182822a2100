// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset_test

import (
	"context"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/cpuset"
)

// Whoever keeps the CPUs too, as systemd does, would put the former ones back.
func TestApply_HasTheCPUsThatFollowWhileMemoryNodesCannot(t *testing.T) {
	bubble(t, func(w tree, g *gate, r *cpuset.Reconciler) {
		unit := ""
		c := w.follow("shared")
		c.Mems, c.Apply = true, func(_ context.Context, cpus, _ cpuset.Set) error { unit = cpus.String(); return nil }
		add(w, r, c)
		w.write("shared", "cpuset.mems", "1") // which is offline
		w.write("shared", "cpuset.mems.effective", "0")
		w.assign("shared", "5")
		g.tell()
		time.Sleep(time.Minute)
		if got := w.read("pod/c1", "cpuset.cpus"); got != "5" || unit != got {
			t.Errorf("cpuset.cpus = %q, and Apply has %q, want 5 (%v)", got, unit, state(w, r, "c1").Err)
		}
	})
}

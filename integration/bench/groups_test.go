// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

func TestChoose(t *testing.T) {
	all := groups()
	for _, tt := range []struct{ names, want string }{
		{"exec", "exec"},
		{"stats,exec", "exec,stats"}, // in the order of all
		{"", strings.Join(names(all), ",")},
	} {
		got, err := choose(all, tt.names)
		if err != nil || strings.Join(names(got), ",") != tt.want {
			t.Errorf("choose(%q) = %v, %v, want %s", tt.names, names(got), err, tt.want)
		}
	}
	if _, err := choose(all, "exec,pigs"); err == nil || !strings.Contains(err.Error(), `"pigs"`) ||
		!strings.Contains(err.Error(), "stats") {
		t.Errorf("choose of what is not there: %v, want an error that names it and what is", err)
	}
}

func names(groups []group) (list []string) {
	for _, g := range groups {
		list = append(list, g.name)
	}
	return list
}

func TestSubjects_EarlierBuildReplacesTheRuncShim(t *testing.T) {
	c := config{tools: "/tools", shim: "/new/shim", against: "/old/shim", crun: true}
	all := subjects(c)
	if len(all) != 2 || all[reference].shim != c.against || all[ours].shim != c.shim || !all[reference].isShim() {
		t.Errorf("subjects(%+v) = %+v, want the earlier build and this one", c, all)
	}
	var got []string
	for _, turn := range podTurns(all) {
		got = append(got, fmt.Sprint(turn.column, " ", strings.Join(turn.ways, "+")))
	}
	want := "0 pod with a pause container, 0 pod without one, 1 pod with a pause container, 1 pod without one"
	if strings.Join(got, ", ") != want {
		t.Errorf("pods are run as %q, want %q", got, want)
	}
	rows := []group{{rows: []row{{Target: target{Zero: true}}, {Target: target{Ratio: 0.3, BelowCrun: true}}, {}}}}
	setTargets(rows, target{Ratio: noWorse})
	for i, want := range []target{{Zero: true}, {Ratio: noWorse}, {Ratio: noWorse}} {
		if got := rows[0].rows[i].Target; got != want {
			t.Errorf("target of row %d = %+v, want %+v", i, got, want)
		}
	}
}

func TestRows_HaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range groups() {
		for _, r := range g.rows {
			if seen[r.Name] {
				t.Errorf("group %s: row %q is there already", g.name, r.Name)
			}
			seen[r.Name] = true
		}
	}
}

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
			if alone := column == reference && f.Name == rowHostRoot; f.Summary[column].N == 0 &&
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

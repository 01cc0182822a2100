// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// group is rows that are measured together. Each group makes what it measures and removes it, so any of them can be
// left out.
type group struct {
	name    string // for -rows
	about   string
	rows    []row
	measure func(*bench, context.Context) error
}

// groups lists all of them in the order in which they run and are shown. The idle shim comes first: what containerd and
// the kernel keep of earlier containers is no part of it.
func groups() []group {
	return append([]group{
		idleGroup(), runGroup(), podGroup(), execGroup(), podExecGroup(), limitsGroup(), statsGroup(), startGroup(),
		crowdGroup(), densityGroup(), neighboursGroup(), sleepGroup(), stormGroup(), upgradeGroup(),
		prewarmGroup(), hostGroup(), criGroup(), cpusetGroup(), binaryGroup(),
	}, confinedGroups()...)
}

// choose returns the groups that a list of names, separated by commas, has. An empty one has all.
func choose(all []group, names string) ([]group, error) {
	if names == "" {
		return all, nil
	}
	var known []string
	for _, g := range all {
		known = append(known, g.name)
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("-rows %q: no group %q; there are %s", names, name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(g group) bool { return !slices.Contains(wanted, g.name) }), nil
}

// noWorse is how much of an earlier build's time or memory a row may take: what differs by less is not told apart.
const noWorse = 1.03

// setTargets gives each row of the groups the same target, but for what must be nothing at all.
func setTargets(groups []group, t target) {
	for _, g := range groups {
		for i := range g.rows {
			if !g.rows[i].Target.Zero {
				g.rows[i].Target = t
			}
		}
	}
}

// describe lists the groups for -h.
func describe(all []group) string {
	var text strings.Builder
	for _, g := range all {
		fmt.Fprintf(&text, "\n  %-9s %s", g.name, g.about)
	}
	return text.String()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"sandbox.internal/shim/integration/section"
)

// page is what stands in docs/performance.md between the marks of a section.
func (r *report) page() string {
	var text strings.Builder
	m := r.Machine
	fmt.Fprintf(&text, "Measured on %s, in %.0f minutes, on %s. Load average before: %s.\n\n",
		r.Begun.Format("2006-01-02"), r.Minutes, m, m.Load)
	fmt.Fprintf(&text, "%s.\n\n", strings.Join(m.Versions, ", "))
	s := r.Settings
	fmt.Fprintf(&text,
		"%d runs, %d rounds each; %d containers at once; a storm on %d containers for %v; idle for %v.\n\n",
		s.Runs, s.Rounds, s.Containers, s.Probed, s.Storm, s.Idle)
	r.markdown(&text)
	if missed := r.missed(); len(missed) > 0 {
		fmt.Fprintf(&text, "\nMissed: %s.\n", strings.Join(missed, "; "))
	} else {
		fmt.Fprintln(&text, "\nNo target that was measured is missed.")
	}
	return text.String()
}

// missed lists the rows whose target was missed.
func (r *report) missed() []string {
	var names []string
	for _, f := range r.Rows {
		if f.Met != nil && !*f.Met {
			names = append(names, f.Name)
		}
	}
	return names
}

// write puts the report into a section of a page.
func (r *report) write(name, part string) error {
	return section.Rewrite(name, "bench:"+part, func(string) string { return r.page() })
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// cells is the table: its heading, and a line for each row that was measured.
func (r *report) cells() [][]string {
	head := []string{"median (10th–90th percentile)"}
	for i, name := range r.Columns {
		head = append(head, name)
		if i != reference {
			head = append(head, "ratio")
		}
	}
	lines := [][]string{append(head, "target", "met", "samples")}
	for _, f := range r.Rows {
		if f.Summary[ours].N == 0 {
			continue
		}
		line := []string{f.Name + ", " + f.Unit}
		for i, s := range f.Summary {
			line = append(line, s.String())
			if i != reference {
				line = append(line, ratios(f.Ratios, i))
			}
		}
		lines = append(lines, append(line, f.Target.String(), verdict(f.Met), fmt.Sprint(f.Summary[ours].N)))
	}
	return lines
}

// String leaves the spread out where there is none.
func (s summary) String() string {
	switch {
	case s.N == 0:
		return "-"
	case s.P10 == s.P90:
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median), number(s.P10), number(s.P90))
}

// number has three digits that count, and at most two after the point.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// ratios lists those of a column, one for each run.
func ratios(runs [][]float64, column int) string {
	var list []string
	for _, run := range runs {
		if run[column] != 0 {
			list = append(list, fmt.Sprintf("%.2f", run[column]))
		}
	}
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ", ")
}

func verdict(met *bool) string {
	switch {
	case met == nil:
		return ""
	case *met:
		return "yes"
	}
	return "NO"
}

// markdown writes the table, for a page and for a terminal.
func (r *report) markdown(w io.Writer) {
	for n, line := range r.cells() {
		fmt.Fprintln(w, "| "+strings.Join(line, " | ")+" |")
		if n == 0 {
			fmt.Fprintln(w, strings.Repeat("|---", len(line))+"|")
		}
	}
}

// page is what stands in docs/performance.md between the marks of a section.
func (r *report) page() string {
	var text strings.Builder
	m, s := r.Machine, r.Settings
	fmt.Fprintf(&text, "Measured on %s, in %.0f minutes, on %s. Load average before: %s.\n\n%s.\n\n",
		r.Begun.Format(time.DateOnly), r.Minutes, m, m.Load, strings.Join(m.Versions, ", "))
	fmt.Fprintf(&text,
		"%d runs, %d rounds each; %d containers at once; a storm on %d containers for %v; idle for %v.\n\n",
		s.Runs, s.Rounds, s.Containers, s.Probed, s.Storm, s.Idle)
	r.markdown(&text)
	var missed []string
	for _, f := range r.Rows {
		if f.Met != nil && !*f.Met {
			missed = append(missed, f.Name)
		}
	}
	if len(missed) > 0 {
		fmt.Fprintf(&text, "\nMissed: %s.\n", strings.Join(missed, "; "))
	} else {
		fmt.Fprintln(&text, "\nNo target that was measured is missed.")
	}
	return text.String()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
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

// write replaces a section of a page.
func (r *report) write(name, section string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := replace(string(text), section, r.page())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(changed), info.Mode()) //nolint:gosec // whoever runs the bench names the page
}

// replace puts content between the marks of a section.
func replace(text, section, content string) (string, error) {
	begin, end := fmt.Sprintf("<!-- bench:%s:begin -->\n", section), fmt.Sprintf("<!-- bench:%s:end -->\n", section)
	before, rest, found := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return "", fmt.Errorf("section %q: no %q with %q after it", section, strings.TrimSpace(begin),
			strings.TrimSpace(end))
	}
	return before + begin + content + end + after, nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable_HasMediansRatiosAndTargets(t *testing.T) {
	want := [][]string{
		{"median (10th–90th percentile)", "runc", "sandbox", "ratio", "crun", "ratio", "target", "met", "samples"},
		{"exec, ms", "30.0 (15.0–450)", "7.50 (3.75–112)", "0.25, 0.25", "15.0 (7.50–225)", "0.50, 0.50", "≤ 0.30, < crun", "yes", "6"},
		{"pss, MiB", "10.0", "7.50 (5.50–9.50)", "0.50, 1.00", "-", "-", "≤ 0.60", "NO", "2"},
		{"init, ms", "-", "123", "-", "-", "-", "", "", "1"},
	}
	if diff := cmp.Diff(want, sample().cells()); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
}

func TestMarkdown_HasAsManyCellsInEachLine(t *testing.T) {
	var text strings.Builder
	r := sample()
	r.markdown(&text)
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if want := len(r.cells()) + 1; len(lines) != want {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), want, text.String())
	}
	for _, line := range lines {
		if got, want := strings.Count(line, "|"), strings.Count(lines[0], "|"); got != want {
			t.Errorf("%d bars, want %d: %s", got, want, line)
		}
	}
	if !strings.HasPrefix(lines[1], "|--") {
		t.Errorf("no line below the heading:\n%s", text.String())
	}
}

func TestPage_NamesWhatIsMissed(t *testing.T) {
	name := filepath.Join(t.TempDir(), "page.md")
	const frame = "# Title\n<!-- bench:native:begin -->\n%<!-- bench:native:end -->\nThe rest.\n"
	if err := os.WriteFile(name, []byte(strings.Replace(frame, "%", "former\n", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := sample()
	for range 2 { // a page that is written again has the section once
		if err := r.write(name, "native"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(frame, "%", r.page(), 1); string(got) != want {
		t.Errorf("page %q, want %q", got, want)
	}
	if !strings.Contains(r.page(), "\nMissed: pss.\n") {
		t.Errorf("no line of what is missed:\n%s", r.page())
	}
	for _, section := range []string{"v2", "nativ"} {
		if err := r.write(name, section); err == nil || !strings.Contains(err.Error(), section) {
			t.Errorf("section %q: error %v, want one that names it", section, err)
		}
	}
}

func TestNumber(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		want string
	}{{0, "0.00"}, {0.123, "0.12"}, {9.87, "9.87"}, {12.34, "12.3"}, {123.4, "123"}, {5365, "5365"}} {
		if got := number(tt.v); got != tt.want {
			t.Errorf("number(%v) = %q, want %q", tt.v, got, tt.want)
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what this machine's kernel says into the table of docs/cgroups.md")

// table is the one of docs/cgroups.md: a row for each field of linux.resources,
// a column for each layout.
type table struct {
	path          string
	before, after string // the text around the rows
	rows          [][]string
}

// The columns of the table.
const (
	columnField = iota
	columnAsked
	columnV1
	columnV2
	columnSystemd
	columns
)

const (
	tableHead = "| field | asked | v1 | v2 | v2, systemd |\n|---|---|---|---|---|\n"
	noSetting = "–"
	absent    = "not on this kernel"
)

func readTable(t *testing.T, path string) *table {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	before, rest, ok := strings.Cut(string(data), tableHead)
	if !ok {
		t.Fatalf("%s has no table that begins with\n%s", path, tableHead)
	}
	tab := &table{path: path, before: before}
	for strings.HasPrefix(rest, "|") {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != columns {
			t.Fatalf("%s: row %q has %d cells, want %d", path, line, len(cells), columns)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		tab.rows = append(tab.rows, cells)
	}
	tab.after = rest
	return tab
}

// column is that of this machine's layout.
func column() int {
	switch {
	case onSystemd() && unified():
		return columnSystemd
	case unified():
		return columnV2
	}
	return columnV1
}

// want compares a cell, or writes it with -update. What this kernel lacks says
// nothing of what others do.
func (tab *table) want(t *testing.T, field, asked, got string) {
	t.Helper()
	i := slices.IndexFunc(tab.rows, func(row []string) bool { return row[columnField] == field && row[columnAsked] == asked })
	if i < 0 && *update {
		tab.rows = append(tab.rows, []string{field, asked, absent, absent, absent})
		i = len(tab.rows) - 1
	}
	switch {
	case i < 0:
		t.Errorf("%s has no row for %s, asked %s; go test -update makes one", tab.path, field, asked)
	case got == absent:
	case *update:
		tab.rows[i][column()] = got
	case tab.rows[i][column()] != got:
		t.Errorf("%s, asked %s: the kernel says %q, %s says %q; go test -update writes it", field, asked, got, tab.path, tab.rows[i][column()])
	}
}

func (tab *table) write(t *testing.T) {
	t.Helper()
	var text strings.Builder
	text.WriteString(tab.before + tableHead)
	for _, row := range tab.rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
	}
	text.WriteString(tab.after)
	must(t, os.WriteFile(tab.path, []byte(text.String()), 0o600))
}

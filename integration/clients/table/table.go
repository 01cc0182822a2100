// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package table writes what came of the cases of clients into docs/compatibility.md. The page has a table of each kind
// of client, between marks of the kind. A table has a column for each machine on which it was made, and below it what
// ran there.
package table

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"sandbox.internal/shim/integration/section"
)

// Row is what came of one case: Cell is what the table shows.
type Row struct{ Case, Cell string }

// Column is what came of all cases of a kind of client on a machine.
type Column struct {
	Kind    string // of client
	Machine string // head of the column
	With    string // versions
	Rows    []Row
}

// Keep writes columns into a file, for Merge.
func Keep(file string, columns []Column) error {
	text, err := json.MarshalIndent(columns, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// Merge writes the columns that Keep wrote into a page.
func Merge(page, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var columns []Column
	if err := json.Unmarshal(text, &columns); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return Put(page, columns)
}

// Put writes columns into a page.
func Put(page string, columns []Column) error {
	for _, c := range columns {
		if err := section.Rewrite(page, c.Kind, c.into); err != nil {
			return err
		}
	}
	return nil
}

// into returns the table with the column in place of the one of the same machine. The column's cases are the rows;
// others go.
func (c Column) into(table string) string {
	all := slices.DeleteFunc(parse(table), func(other Column) bool { return other.Machine == c.Machine })
	all = append(all, c)
	slices.SortFunc(all, func(a, b Column) int { return strings.Compare(a.Machine, b.Machine) })
	var b strings.Builder
	b.WriteString("| case |")
	for _, column := range all {
		b.WriteString(" " + column.Machine + " |")
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(all)+1) + "\n")
	for _, r := range c.Rows {
		b.WriteString("| " + r.Case + " |")
		for _, column := range all {
			i := slices.IndexFunc(column.Rows, func(other Row) bool { return other.Case == r.Case })
			if i < 0 {
				b.WriteString(" |")
			} else {
				b.WriteString(" " + column.Rows[i].Cell + " |")
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, column := range all {
		b.WriteString("- " + column.Machine + ": " + column.With + "\n")
	}
	return b.String()
}

// parse reads the columns of a table that into has written.
func parse(table string) []Column {
	var columns []Column
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for n, cell := range cells {
			cells[n] = strings.TrimSpace(cell)
		}
		switch machine, with, isList := strings.Cut(strings.TrimPrefix(line, "- "), ": "); {
		case i == 0:
			for _, name := range cells[1:] {
				columns = append(columns, Column{Machine: name})
			}
		case strings.HasPrefix(line, "- ") && isList:
			for n := range columns {
				if columns[n].Machine == machine {
					columns[n].With = with
				}
			}
		case i > 1 && len(cells) == len(columns)+1:
			for n := range columns {
				if cells[n+1] != "" {
					columns[n].Rows = append(columns[n].Rows, Row{cells[0], cells[n+1]})
				}
			}
		}
	}
	return columns
}

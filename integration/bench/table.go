// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// table holds samples by row and column.
type table struct {
	Columns []string `json:"columns"`
	Rows    []*row   `json:"rows"`
}

// row is one figure of all subjects.
type row struct {
	Name    string      `json:"name"`
	Unit    string      `json:"unit"`
	Samples [][]float64 `json:"samples"` // by column, in the order they were taken
	Medians []float64   `json:"medians"` // by column
}

func newTable(subjects []subject) *table {
	t := &table{}
	for _, s := range subjects {
		t.Columns = append(t.Columns, s.name)
	}
	return t
}

// row finds the row of that name, or makes it the last one.
func (t *table) row(name, unit string) *row {
	if i := slices.IndexFunc(t.Rows, func(r *row) bool { return r.Name == name }); i >= 0 {
		return t.Rows[i]
	}
	r := &row{
		Name: name, Unit: unit, Samples: make([][]float64, len(t.Columns)), Medians: make([]float64, len(t.Columns)),
	}
	t.Rows = append(t.Rows, r)
	return r
}

// add takes a sample.
func (t *table) add(name, unit string, column int, value float64) {
	r := t.row(name, unit)
	r.Samples[column] = append(r.Samples[column], value)
	r.Medians[column] = median(r.Samples[column])
}

// print writes medians, and how many times as much the others take as the first column does.
func (t *table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(tw, "median")
	for i, c := range t.Columns {
		fmt.Fprintf(tw, "\t%14s", c)
		if i > 0 {
			fmt.Fprintf(tw, "\t%8s", "ratio")
		}
	}
	fmt.Fprintf(tw, "\t%8s\n", "samples")
	for _, r := range t.Rows {
		fmt.Fprintf(tw, "%s, %s", r.Name, r.Unit)
		for i := range t.Columns {
			fmt.Fprintf(tw, "\t%14s", figure(r.Samples[i], r.Medians[i]))
			if i > 0 {
				fmt.Fprintf(tw, "\t%8s", ratio(r.Medians[i], r.Medians[0]))
			}
		}
		fmt.Fprintf(tw, "\t%8d\n", len(r.Samples[0]))
	}
	_ = tw.Flush() // a table that nobody reads is no error
}

func figure(samples []float64, median float64) string {
	if len(samples) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", median)
}

func ratio(theirs, ours float64) string {
	if ours == 0 || theirs == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fx", theirs/ours)
}

// median of no samples is 0.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

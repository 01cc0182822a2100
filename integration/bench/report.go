// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// report is everything that was measured.
type report struct {
	Machine  machine   `json:"machine"`
	Begun    time.Time `json:"begun"`
	Minutes  float64   `json:"minutes"`
	Settings settings  `json:"settings"`
	Columns  []string  `json:"columns"`
	Rows     []*figure `json:"rows"`
}

// row is a figure that every subject is measured by.
type row struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Target target `json:"target,omitzero"`
}

// target is what our shim must reach. Its zero value is none.
type target struct {
	Ratio     float64 `json:"ratio,omitzero"`     // at most so many times the reference
	BelowCrun bool    `json:"belowCrun,omitzero"` // less than with crun, where that was measured
	Zero      bool    `json:"zero,omitzero"`      // nothing at all
	Limit     float64 `json:"limit,omitzero"`     // at most this figure, whatever the reference has
}

func (t target) String() string {
	switch {
	case t.Zero:
		return "0"
	case t.Limit != 0:
		return fmt.Sprintf("figure ≤ %.2f", t.Limit)
	case t.Ratio == 0:
		return ""
	case t.BelowCrun:
		return fmt.Sprintf("≤ %.2f, < crun", t.Ratio)
	}
	return fmt.Sprintf("≤ %.2f", t.Ratio)
}

// figure is a row with what was measured.
type figure struct {
	row
	Samples [][][]float64 `json:"samples"` // by run and column, in the order they were taken
	Summary []summary     `json:"summary"` // by column, of all runs
	Ratios  [][]float64   `json:"ratios"`  // by run and column: the median as a multiple of the reference's; 0 for none
	// Met reports whether each run met the target. It is nil without a target, or when not measured.
	Met *bool `json:"met"`
}

// summary is what the samples of a column come to.
type summary struct {
	Median float64 `json:"median"`
	P10    float64 `json:"p10"`
	P90    float64 `json:"p90"`
	N      int     `json:"n"`
}

func newReport(s settings, subjects []*subject, groups []group) *report {
	r := &report{Begun: time.Now().UTC(), Settings: s}
	for _, s := range subjects {
		r.Columns = append(r.Columns, s.name)
	}
	for _, g := range groups {
		for _, row := range g.rows {
			f := &figure{row: row}
			for range s.Runs {
				f.Samples = append(f.Samples, make([][]float64, len(subjects)))
			}
			r.Rows = append(r.Rows, f)
		}
	}
	return r
}

// add takes a sample for a row, which a chosen group must have.
func (r *report) add(name string, run, column int, value float64) {
	samples := r.figure(name).Samples[run]
	samples[column] = append(samples[column], value)
}

func (r *report) figure(name string) *figure {
	return r.Rows[slices.IndexFunc(r.Rows, func(f *figure) bool { return f.Name == name })]
}

// conclude fills in what follows from the samples.
func (r *report) conclude() {
	for _, f := range r.Rows {
		f.Summary, f.Ratios = nil, nil
		for column := range r.Columns {
			var all []float64
			for _, run := range f.Samples {
				all = append(all, run[column]...)
			}
			f.Summary = append(f.Summary, summarize(all))
		}
		for _, run := range f.Samples {
			ratios := make([]float64, len(r.Columns))
			for column := range ratios {
				ratios[column] = ratio(run[column], run[reference])
			}
			f.Ratios = append(f.Ratios, ratios)
		}
		f.Met = f.met(len(r.Columns) > withCrun && r.Columns[withCrun] == crun)
	}
}

// met reports whether every run met the target; nil if a run did not measure it.
func (f *figure) met(hasCrun bool) *bool {
	if f.Target == (target{}) {
		return nil
	}
	all := true
	for i, run := range f.Samples {
		alone := f.Target.Zero || f.Target.Limit != 0
		if len(run[ours]) == 0 || !alone && f.Ratios[i][ours] == 0 {
			return nil
		}
		mine := summarize(run[ours]).Median
		if alone {
			all = all && mine <= f.Target.Limit // which is 0 for Zero
			continue
		}
		all = all && f.Ratios[i][ours] <= f.Target.Ratio
		if f.Target.BelowCrun && hasCrun && len(run[withCrun]) > 0 {
			all = all && mine < summarize(run[withCrun]).Median
		}
	}
	return &all
}

// ratio is how many times the reference's median is in that of samples, 0 if one of them has none or is 0.
func ratio(samples, reference []float64) float64 {
	r := summarize(reference).Median
	if r == 0 {
		return 0
	}
	return summarize(samples).Median / r
}

// summarize returns zeros for no samples.
func summarize(samples []float64) summary {
	if len(samples) == 0 {
		return summary{}
	}
	s := slices.Sorted(slices.Values(samples))
	return summary{Median: quantile(s, 0.5), P10: quantile(s, 0.1), P90: quantile(s, 0.9), N: len(s)}
}

// quantile interpolates between the two samples on either side of q, from 0 to 1. The samples are sorted.
func quantile(sorted []float64, q float64) float64 {
	place := q * float64(len(sorted)-1)
	i := int(place)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (place-float64(i))*(sorted[i+1]-sorted[i])
}

// save writes the report as JSON.
func (r *report) save(name string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode figures: %w", err)
	}
	return os.WriteFile(name, append(data, '\n'), 0o644) //nolint:gosec // figures are for everyone
}

// load reads what save wrote.
func load(name string) (*report, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("decode %s: %w", name, err)
	}
	r.conclude()
	return r, nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// Kind is which promise was broken.
type Kind string

// The kinds of violations.
const (
	WrongAnswer Kind = "wrong answer"
	LostExit    Kind = "lost exit"
	LostDelete  Kind = "lost delete"
	OutOfOrder  Kind = "event out of order"
	Leak        Kind = "leak"
	Harmed      Kind = "harmed bystander"
	Growth      Kind = "growth of a shim"
)

// Violation is a promise that was broken.
type Violation struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
}

// String is what a person reads.
func (v Violation) String() string { return string(v.Kind) + ": " + v.Text }

// Totals counts what a campaign did and what it found.
type Totals struct {
	Runtime    string        `json:"runtime"`
	Seeds      []uint64      `json:"seeds"`
	Time       time.Duration `json:"time"`
	Rounds     int           `json:"rounds"`
	Steps      int           `json:"steps"`
	Operations int           `json:"operations"`
	Containers int           `json:"containers"`
	Pods       int           `json:"pods"`
	Execs      int           `json:"execs"`
	Events     int           `json:"events"`
	Processes  int           `json:"processesKilled"`
	Stops      int           `json:"stops"`
	Shims      int           `json:"shimsKilled"`
	Daemons    int           `json:"containerdKilled"`
	Restarts   int           `json:"containerdRestarted"`
	Found      map[Kind]int  `json:"found,omitempty"`
}

// Add adds what another part did. Parts of the same campaign run at the same time, others one after the other.
func (t *Totals) Add(o Totals) {
	t.Rounds += o.Rounds
	t.Steps += o.Steps
	t.Operations += o.Operations
	t.Containers += o.Containers
	t.Pods += o.Pods
	t.Execs += o.Execs
	t.Events += o.Events
	t.Processes += o.Processes
	t.Stops += o.Stops
	t.Shims += o.Shims
	t.Daemons += o.Daemons
	t.Restarts += o.Restarts
	for kind, n := range o.Found {
		t.found(kind, n)
	}
}

func (t *Totals) found(kind Kind, n int) {
	if t.Found == nil {
		t.Found = map[Kind]int{}
	}
	t.Found[kind] += n
}

// Violations is how many promises were broken.
func (t *Totals) Violations() int {
	n := 0
	for _, of := range t.Found {
		n += of
	}
	return n
}

// WriteTable prints a column for each of the totals.
func WriteTable(w io.Writer, list ...Totals) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, value func(Totals) any) {
		fmt.Fprint(table, name)
		for _, t := range list {
			fmt.Fprintf(table, "\t%v", value(t))
		}
		fmt.Fprint(table, "\t\n")
	}
	row("", func(t Totals) any { return strings.TrimPrefix(t.Runtime, "io.containerd.") })
	row("seeds", func(t Totals) any { return seeds(t.Seeds) })
	row("time", func(t Totals) any { return t.Time.Round(time.Second) })
	row("operations", func(t Totals) any { return t.Operations })
	row("containers", func(t Totals) any { return t.Containers })
	row("of them in pods", func(t Totals) any { return t.Pods })
	row("execs", func(t Totals) any { return t.Execs })
	row("events", func(t Totals) any { return t.Events })
	row("kills of processes", func(t Totals) any { return t.Processes })
	row("kills of shims", func(t Totals) any { return t.Shims })
	row("kills of containerd", func(t Totals) any { return t.Daemons })
	row("restarts of containerd", func(t Totals) any { return t.Restarts })
	row("stops for a while", func(t Totals) any { return t.Stops })
	for _, kind := range []Kind{WrongAnswer, LostExit, LostDelete, OutOfOrder, Leak, Harmed, Growth} {
		row(string(kind), func(t Totals) any { return t.Found[kind] })
	}
	_ = table.Flush() // to a person's terminal
}

func seeds(list []uint64) string {
	if len(list) > 3 {
		return fmt.Sprintf("%d, %d and %d more", list[0], list[1], len(list)-2)
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}

// Load reads totals that Save wrote.
func Load(name string) (t Totals, err error) {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return t, fmt.Errorf("totals: %w", err)
	}
	return t, nil
}

// Save writes totals for Load.
func (t *Totals) Save(name string) error { return saveJSON(name, t) }

// saveJSON writes v so that a reader sees all of it or what was there before.
func saveJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// Sum adds up the totals of several runs, one column for each runtime in the order in which they come.
func Sum(parts []Totals) []Totals {
	var list []Totals
next:
	for _, p := range parts {
		for i := range list {
			if list[i].Runtime == p.Runtime {
				list[i].Add(p)
				list[i].Time += p.Time
				list[i].Seeds = append(list[i].Seeds, p.Seeds...)
				continue next
			}
		}
		first := Totals{Runtime: p.Runtime, Seeds: p.Seeds, Time: p.Time}
		first.Add(p)
		list = append(list, first)
	}
	return list
}

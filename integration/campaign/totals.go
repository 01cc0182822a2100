// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	Hostile    int           `json:"hostile"` // programs
	Weather    int           `json:"weather"` // spells of bad weather
	Sources    int           `json:"sources"` // changes of the CPUs that containers follow
	LeftOut    int           `json:"leftOut"` // of these, where that cannot be
	Found      map[Kind]int  `json:"found,omitempty"`
	Origins    []Origin      `json:"origins,omitempty"` // one for each run that differs from the one before
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
	t.Hostile += o.Hostile
	t.Weather += o.Weather
	t.Sources += o.Sources
	t.LeftOut += o.LeftOut
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

// Sum adds up the totals of several runs: one column for each runtime and each mode of cgroups, in the order in which
// they come.
func Sum(parts []Totals) []Totals {
	var list []Totals
next:
	for _, p := range parts {
		for i := range list {
			if list[i].Runtime == p.Runtime && list[i].cgroup() == p.cgroup() {
				list[i].merge(p)
				continue next
			}
		}
		first := Totals{Runtime: p.Runtime}
		first.merge(p)
		list = append(list, first)
	}
	return list
}

// merge adds what another run did.
func (t *Totals) merge(o Totals) {
	t.Add(o)
	t.Time += o.Time
	t.Seeds = append(t.Seeds, o.Seeds...)
	t.Origins = append(t.Origins, o.Origins...)
}

// FileName is that of the totals of a run among those of others.
func (t *Totals) FileName() string {
	return fmt.Sprintf("%s-%d-%s-%s.json", t.Origins[0].Begun.Format("2006-01-02T1504"), t.Seeds[0],
		strings.TrimPrefix(t.Runtime, "io.containerd."), strings.NewReplacer(" ", "-", "(", "", ")", "").Replace(t.cgroup()))
}

// LoadAll reads all totals in a directory, the oldest first.
func LoadAll(dir string) ([]Totals, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	list := make([]Totals, len(names))
	for i, name := range names { // Glob sorts
		if list[i], err = Load(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

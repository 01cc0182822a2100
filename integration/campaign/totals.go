// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"sandbox.internal/shim/integration/harness"
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

// Add adds the counts of another part. Parts of the same campaign run at the same time, so Time is not added.
func (t *Totals) Add(o Totals) {
	to, from := reflect.ValueOf(t).Elem(), reflect.ValueOf(o)
	for i := range to.NumField() {
		if f := to.Field(i); f.Kind() == reflect.Int {
			f.SetInt(f.Int() + from.Field(i).Int())
		}
	}
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

// Load reads the totals of runs from a file that has those of a run in each line.
func Load(name string) (list []Totals, err error) {
	text, err := os.ReadFile(name)
	for d := json.NewDecoder(bytes.NewReader(text)); err == nil; {
		var t Totals
		if err = d.Decode(&t); err == nil {
			list = append(list, t)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("totals: %w", err)
	}
	return list, nil
}

// Append adds the totals of a run to a file for Load.
func (t *Totals) Append(name string) error {
	line, err := json.Marshal(t)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Sum adds up the totals of several runs: one column for each runtime and each mode of cgroups, in the order in which
// they come.
func Sum(parts []Totals) []Totals {
	var list []Totals
	for _, p := range parts {
		i := slices.IndexFunc(list, func(t Totals) bool { return t.column() == p.column() })
		if i < 0 {
			i, list = len(list), append(list, Totals{Runtime: p.Runtime})
		}
		t := &list[i]
		t.Add(p)
		t.Time += p.Time
		t.Seeds = append(t.Seeds, p.Seeds...)
		t.Origins = append(t.Origins, p.Origins...)
	}
	return list
}

// column names the runtime, and the mode of the machine's cgroups in a few words.
func (t *Totals) column() string {
	name, mode := "this shim", "unknown"
	if t.Runtime != harness.Ours {
		name, _, _ = strings.Cut(strings.TrimPrefix(t.Runtime, "io.containerd."), ".")
		name += " shim"
	}
	if len(t.Origins) > 0 {
		mode, _, _ = strings.Cut(t.Origins[0].Cgroup, ",")
		if strings.Contains(t.Origins[0].Cgroup, "hybrid") {
			mode = "hybrid"
		}
	}
	return name + ", cgroup " + mode
}

// Table is a column for each of the totals, in Markdown, for a page and for a terminal.
func Table(list ...Totals) string {
	var b strings.Builder
	row := func(name string, value func(t *Totals) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for i := range list {
			fmt.Fprintf(&b, " %s |", value(&list[i]))
		}
		b.WriteString("\n")
	}
	count := func(name string, values func(t *Totals) []int) {
		row(name, func(t *Totals) string {
			var texts []string
			for _, n := range values(t) {
				texts = append(texts, message.NewPrinter(language.English).Sprint(n)) // 1,234,567
			}
			return strings.Join(texts, ", ")
		})
	}
	origin := func(name string, value func(Origin) string) {
		row(name, func(t *Totals) string { return each(t.Origins, value) })
	}
	row("", (*Totals).column)
	b.WriteString("|---|" + strings.Repeat("---|", len(list)) + "\n")
	row("time", func(t *Totals) string { return t.Time.Round(time.Second).String() })
	row("seeds", func(t *Totals) string {
		return each(t.Seeds, func(seed uint64) string { return strconv.FormatUint(seed, 10) })
	})
	origin("days", func(o Origin) string { return o.Begun.Format(time.DateOnly) })
	row("builds", func(t *Totals) string {
		if len(t.Origins) == 0 {
			return "unknown"
		}
		ends := []Origin{t.Origins[0], t.Origins[len(t.Origins)-1]}
		return strings.ReplaceAll(each(ends, func(o Origin) string { return o.Shim }), ", ", " to ")
	})
	origin("machines", func(o Origin) string {
		return fmt.Sprintf("containerd %s on Linux %s with %d CPUs", o.Containerd, o.Kernel, o.CPUs)
	})
	count("operations", func(t *Totals) []int { return []int{t.Operations} })
	count("containers, of them in pods", func(t *Totals) []int { return []int{t.Containers, t.Pods} })
	count("execs", func(t *Totals) []int { return []int{t.Execs} })
	count("events", func(t *Totals) []int { return []int{t.Events} })
	count("processes killed", func(t *Totals) []int { return []int{t.Processes} })
	count("shims killed", func(t *Totals) []int { return []int{t.Shims} })
	count("containerd killed, restarted", func(t *Totals) []int { return []int{t.Daemons, t.Restarts} })
	count("stopped for a while", func(t *Totals) []int { return []int{t.Stops} })
	count("hostile programs", func(t *Totals) []int { return []int{t.Hostile} })
	count("/run full or read-only, shims without memory or processes", func(t *Totals) []int { return []int{t.Weather} })
	count("changes of CPU sources", func(t *Totals) []int { return []int{t.Sources} })
	for _, found := range []struct {
		name string
		kind Kind
	}{
		{"wrong answers", WrongAnswer},
		{"lost exits", LostExit},
		{"lost deletes", LostDelete},
		{"events out of order", OutOfOrder},
		{"leaks", Leak},
		{"bystanders harmed", Harmed},
		{"shims that grew", Growth},
	} {
		count(found.name, func(t *Totals) []int { return []int{t.Found[found.kind]} })
	}
	return b.String()
}

// each names each value once, in the order in which they come.
func each[T any](list []T, value func(T) string) string {
	var names []string
	for _, one := range list {
		if name := value(one); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return cmp.Or(strings.Join(names, ", "), "unknown")
}

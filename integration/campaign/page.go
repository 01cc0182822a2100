// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// row is one line of the table of totals.
type row struct {
	name  string
	value func(Totals) string
}

// rows are those of all tables.
func rows() []row {
	count := func(name string, value func(Totals) int) row {
		return row{name, func(t Totals) string { return thousands(value(t)) }}
	}
	pair := func(name string, value func(Totals) (int, int)) row {
		return row{name, func(t Totals) string {
			a, b := value(t)
			return thousands(a) + ", " + thousands(b)
		}}
	}
	found := func(name string, kind Kind) row { return count(name, func(t Totals) int { return t.Found[kind] }) }
	return []row{
		count("operations", func(t Totals) int { return t.Operations }),
		pair("containers, of them in pods", func(t Totals) (int, int) { return t.Containers, t.Pods }),
		count("execs", func(t Totals) int { return t.Execs }),
		count("events", func(t Totals) int { return t.Events }),
		count("processes killed", func(t Totals) int { return t.Processes }),
		count("shims killed", func(t Totals) int { return t.Shims }),
		pair("containerd killed, restarted", func(t Totals) (int, int) { return t.Daemons, t.Restarts }),
		count("stopped for a while", func(t Totals) int { return t.Stops }),
		count("hostile programs", func(t Totals) int { return t.Hostile }),
		count("/run full or read-only, shims without memory or processes", func(t Totals) int { return t.Weather }),
		count("changes of CPU sources", func(t Totals) int { return t.Sources }),
		found("wrong answers", WrongAnswer),
		found("lost exits", LostExit),
		found("lost deletes", LostDelete),
		found("events out of order", OutOfOrder),
		found("leaks", Leak),
		found("bystanders harmed", Harmed),
		found("shims that grew", Growth),
	}
}

// thousands is a number with a comma in front of each three digits.
func thousands(n int) string { return message.NewPrinter(language.English).Sprint(n) }

// WriteTable prints a column for each of the totals, for a terminal.
func WriteTable(w io.Writer, list ...Totals) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(name string, value func(Totals) string) {
		fmt.Fprint(table, name)
		for _, t := range list {
			fmt.Fprintf(table, "\t%s", value(t))
		}
		fmt.Fprint(table, "\t\n")
	}
	line("", func(t Totals) string { return strings.TrimPrefix(t.Runtime, "io.containerd.") })
	line("seeds", func(t Totals) string {
		if n := len(t.Seeds); n > 3 {
			return fmt.Sprintf("%d, %d and %d more", t.Seeds[0], t.Seeds[1], n-2)
		}
		return enumerate(t.Seeds, decimal)
	})
	line("time", func(t Totals) string { return t.Time.Round(time.Second).String() })
	for _, r := range rows() {
		line(r.name, r.value)
	}
	_ = table.Flush() // to a person's terminal
}

// WritePage puts the totals into their section of a page.
func WritePage(name string, list ...Totals) error {
	return section.Rewrite(name, "campaign", func(string) string { return page(list) })
}

// page is what stands there, in Markdown.
func page(list []Totals) string {
	var b strings.Builder
	for _, t := range list {
		fmt.Fprintf(&b, "- %s\n", t.describe())
	}
	b.WriteString("\n| |")
	for _, t := range list {
		fmt.Fprintf(&b, " %s |", t.column())
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(list)) + "\n")
	for _, r := range rows() {
		fmt.Fprintf(&b, "| %s |", r.name)
		for _, t := range list {
			fmt.Fprintf(&b, " %s |", r.value(t))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// column is the head of a column.
func (t *Totals) column() string {
	name := "this shim"
	if t.Runtime != harness.Ours {
		name = strings.TrimPrefix(t.Runtime, "io.containerd.")
		name, _, _ = strings.Cut(name, ".")
		name += " shim"
	}
	return name + ", cgroup " + t.cgroup()
}

// cgroup is the mode of the machines, in a few words.
func (t *Totals) cgroup() string {
	if len(t.Origins) == 0 {
		return "unknown"
	}
	mode, _, _ := strings.Cut(t.Origins[0].Cgroup, ",")
	if strings.Contains(t.Origins[0].Cgroup, "hybrid") {
		mode = "hybrid"
	}
	return mode
}

// describe tells in a sentence what was run on what.
func (t *Totals) describe() string {
	of := func(value func(Origin) string) string { return enumerate(t.Origins, value) }
	first, last := slices.MinFunc(t.Origins, byTime), slices.MaxFunc(t.Origins, byTime)
	builds, days := first.Shim, first.Begun.Format(time.DateOnly)
	if last.Shim != first.Shim {
		builds += " to " + last.Shim
	}
	if day := last.Begun.Format(time.DateOnly); day != days {
		days += " to " + day
	}
	return fmt.Sprintf("%s: %s, %v, by the seeds %s. Builds %s. containerd %s, Linux %s, %s CPUs.", t.column(), days,
		t.Time.Round(time.Minute), enumerate(t.Seeds, decimal), builds, of(func(o Origin) string { return o.Containerd }),
		of(func(o Origin) string { return o.Kernel }), of(func(o Origin) string { return strconv.Itoa(o.CPUs) }))
}

func decimal(seed uint64) string { return strconv.FormatUint(seed, 10) }

func byTime(a, b Origin) int { return a.Begun.Compare(b.Begun) }

// enumerate names each value once, in the order in which they come.
func enumerate[T any](list []T, value func(T) string) string {
	var names []string
	for _, one := range list {
		if name := value(one); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return cmp.Or(strings.Join(names, ", "), "unknown")
}

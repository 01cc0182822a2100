// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

// column of the table.
type column struct {
	title string
	width int // 0: what is left
	from  int // the narrowest terminal that shows it
	left  bool
	text  func(r *row) string
	// compare puts first what people look for: the most, or the first name.
	compare func(a, b *row) int
}

// byCPU is the column by which the table is sorted at first.
const byCPU = 1

func most[T cmp.Ordered](value func(*row) T) func(a, b *row) int {
	return func(a, b *row) int { return cmp.Compare(value(b), value(a)) }
}

func first(value func(*row) string) func(a, b *row) int {
	return func(a, b *row) int { return cmp.Compare(value(a), value(b)) }
}

// columns are those of pods and containers.
var columns = []column{
	{"NAME", 0, 0, true, func(r *row) string { return r.name }, first(func(r *row) string { return r.name })},
	{"CPU%", 6, 0, false, (*row).cpuText, most(func(r *row) float64 { return r.cpu })},
	{"MEM", 6, 0, false, (*row).memoryText, most(func(r *row) uint64 { return r.memory })},
	{"LIMIT", 6, 0, false, (*row).limitText, most(func(r *row) uint64 { return r.limit })},
	{"PSI", 6, 0, false, (*row).pressureText, most(func(r *row) float64 { return r.pressure.worst() })},
	{"PIDS", 5, 0, false, (*row).pidsText, most(func(r *row) uint64 { return r.pids })},
	{"EXEC/S", 6, 0, false, (*row).execsText, most(func(r *row) float64 { return r.execs })},
	{"OOM", 4, 0, false, (*row).oomText, most(func(r *row) uint64 { return r.oom })},
	{"THR%", 5, 0, false, (*row).throttleText, most(func(r *row) float64 { return r.throttle })},
	{"CPUS", 7, 0, true, func(r *row) string { return orDash(r.cpus) }, first(func(r *row) string { return r.cpus })},
	{"SHIM", 14, 100, true, (*row).shimText, first((*row).shimText)},
	{"STATE", 8, 140, true, func(r *row) string { return orDash(r.state) }, first(func(r *row) string { return r.state })},
	{"SOURCE", 20, 120, true, (*row).sourceText, first((*row).sourceText)},
	{"NAMESPACE", 12, 160, true, (*row).namespaceText, first((*row).namespaceText)},
}

// shown returns the columns that a terminal of a width has room for, as indexes of columns.
func shown(width int) (list []int) {
	for i, c := range columns {
		if width >= c.from {
			list = append(list, i)
		}
	}
	return list
}

func orDash(text string) string { return cmp.Or(text, "-") }

// unless returns text, or a dash if it is unknown.
func unless(unknown bool, text string) string {
	if unknown {
		return "-"
	}
	return text
}

func (r *row) cpuText() string    { return unless(r.unknown.CPU, percent(r.cpu)) }
func (r *row) memoryText() string { return unless(r.unknown.Memory, size(r.memory)) }
func (r *row) pidsText() string   { return unless(r.unknown.Pids, strconv.FormatUint(r.pids, 10)) }
func (r *row) oomText() string    { return unless(r.unknown.OOMKills, strconv.FormatUint(r.oom, 10)) }

func (r *row) limitText() string {
	if r.limit == 0 {
		return "-"
	}
	return size(r.limit)
}

func (r *row) execsText() string {
	if !r.execsOK {
		return "-"
	}
	return fmt.Sprintf("%.1f", r.execs)
}

func (r *row) throttleText() string  { return unless(r.unknown.Throttling, percent(r.throttle)) }
func (r *row) sourceText() string    { return orDash(r.source) }
func (r *row) namespaceText() string { return r.namespace }

// percent returns a share of one as a percentage.
func percent(share float64) string {
	if share >= 9.995 {
		return fmt.Sprintf("%.0f", 100*share)
	}
	return fmt.Sprintf("%.1f", 100*share)
}

// size returns a number of bytes in at most five characters.
func size(n uint64) string {
	value, unit := float64(n), ""
	for _, u := range []string{"K", "M", "G", "T", "P"} {
		if value < 1023.5 {
			break
		}
		value, unit = value/1024, u
	}
	if unit != "" && value < 9.95 {
		return fmt.Sprintf("%.1f%s", value, unit)
	}
	return fmt.Sprintf("%.0f%s", value, unit)
}

// pressureText returns the worst pressure, with the first letter of what was waited for.
func (r *row) pressureText() string {
	p := r.pressure
	switch worst := p.worst(); {
	case !p.known:
		return "-"
	case worst == 0:
		return "0"
	case worst == p.memory:
		return fmt.Sprintf("m%.1f", worst)
	case worst == p.io:
		return fmt.Sprintf("i%.1f", worst)
	default:
		return fmt.Sprintf("c%.1f", worst)
	}
}

// shimText returns the short name of the runtime, with the pid.
func (r *row) shimText() string {
	name := r.runtime()
	if r.shim.Pid == 0 {
		return strings.TrimSpace(name + " -")
	}
	return fmt.Sprintf("%s %d", name, r.shim.Pid)
}

// clock returns a time that a process used as text.
func clock(d time.Duration) string {
	if d >= time.Hour {
		return fmt.Sprintf("%d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d:%05.2f", int(d.Minutes()), (d % time.Minute).Seconds())
}

// cell returns text in a field of a width, with a mark if it is cut. Names come from containers: they must not affect
// the terminal.
func cell(text string, width int, left bool) string {
	text = ansi.Truncate(cli.Printable(text), width, "~")
	space := strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
	if left {
		return text + space
	}
	return space + text
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	tea "charm.land/bubbletea/v2"

	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// target is a container whose processes are shown.
type target struct{ namespace, id, name string }

// processView is the list of the processes of one container.
type processView struct {
	of     *target // nil: it is not shown
	now    []node.Process
	before map[int]node.Process // by pid
	taken  time.Time
	passed time.Duration // between the last two
	known  bool          // there was an answer
	err    error
	column int // by which it is sorted
	at     int // the cursor
	scroll int
}

// byProcessCPU is the column by which processes are sorted at first.
const byProcessCPU = 2

func newProcessView() processView { return processView{column: byProcessCPU} }

// take applies an answer.
func (v *processView) take(a answer) {
	v.err, v.known = a.procErr, true
	if a.procErr != nil {
		return
	}
	v.before = map[int]node.Process{}
	for _, p := range v.now {
		v.before[p.Pid] = p
	}
	v.passed, v.taken = a.procAt.Sub(v.taken), a.procAt
	v.now = a.processes
}

// sameStart is how far the start times of one process may differ between two readings. They are computed from the clock
// and the time since boot, which are not read at the same moment, and the clock is adjusted.
const sameStart = time.Second

// cpu returns the share of one CPU that a process has used since it was last seen.
func (v *processView) cpu(p node.Process) float64 {
	before, seen := v.before[p.Pid]
	if !seen || v.passed <= 0 || p.CPU < before.CPU || p.Started.Sub(before.Started).Abs() > sameStart {
		return 0
	}
	return float64(p.CPU-before.CPU) / float64(v.passed)
}

// processColumn is a column of the list.
type processColumn struct {
	title   string
	width   int // 0: what is left
	left    bool
	text    func(v *processView, p node.Process) string
	compare func(v *processView, a, b node.Process) int
}

var processColumns = []processColumn{
	{
		"PID", 8, false, func(_ *processView, p node.Process) string { return strconv.Itoa(p.Pid) },
		func(_ *processView, a, b node.Process) int { return cmp.Compare(a.Pid, b.Pid) },
	},
	{
		"EXEC", 14, true, func(_ *processView, p node.Process) string { return cmp.Or(p.Exec, "-") },
		func(_ *processView, a, b node.Process) int { return cmp.Compare(a.Exec, b.Exec) },
	},
	{
		"CPU%", 6, false, func(v *processView, p node.Process) string { return percent(v.cpu(p)) },
		func(v *processView, a, b node.Process) int { return cmp.Compare(v.cpu(b), v.cpu(a)) },
	},
	{
		"TIME", 10, false, func(_ *processView, p node.Process) string { return clock(p.CPU) },
		func(_ *processView, a, b node.Process) int { return cmp.Compare(b.CPU, a.CPU) },
	},
	{
		"MEM", 6, false, func(_ *processView, p node.Process) string { return size(p.RSS) },
		func(_ *processView, a, b node.Process) int { return cmp.Compare(b.RSS, a.RSS) },
	},
	{
		"NAME", 0, true, func(_ *processView, p node.Process) string { return p.Name },
		func(_ *processView, a, b node.Process) int { return cmp.Compare(a.Name, b.Name) },
	},
}

// sorted returns the processes in their order.
func (v *processView) sorted() []node.Process {
	list := slices.Clone(v.now)
	compare := processColumns[v.column].compare
	slices.SortStableFunc(list, func(a, b node.Process) int { return cmp.Or(compare(v, a, b), cmp.Compare(a.Pid, b.Pid)) })
	return list
}

// key handles a key. window is how many processes are visible.
func (v *processView) key(name string, window int) tea.Cmd {
	columns := len(processColumns)
	switch name {
	case "esc", "enter", "backspace":
		*v = newProcessView()
		return nil
	case "up", "k":
		v.at--
	case "down", "j":
		v.at++
	case "pgup":
		v.at -= window
	case "pgdown":
		v.at += window
	case "home", "g":
		v.at = 0
	case "end", "G":
		v.at = len(v.now) - 1
	case "<", "left", ",":
		v.column = (v.column + columns - 1) % columns
	case ">", "right", ".":
		v.column = (v.column + 1) % columns
	}
	v.at = max(0, min(v.at, len(v.now)-1))
	v.scroll = scrolled(v.scroll, v.at, len(v.now), window)
	return nil
}

// status returns the line above the list.
func (v *processView) status() string {
	switch {
	case v.err != nil:
		return "error: " + v.err.Error()
	case !v.known:
		return "asking…"
	}
	return fmt.Sprintf("%d processes, sorted by %s", len(v.now), processColumns[v.column].title)
}

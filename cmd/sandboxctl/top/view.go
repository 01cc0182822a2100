// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
)

// The screen has two lines above the table, its header, and two lines below.
const otherLines = 5

// The only attributes: colours have no meaning.
const (
	reverse = "\x1b[7m"
	bold    = "\x1b[1m"
	normal  = "\x1b[m"
)

// body returns how many rows of the table are visible.
func (m *model) body() int { return max(1, m.height-otherLines) }

// processBody returns how many processes are visible.
func (m *model) processBody() int { return m.body() }

// View implements tea.Model.
func (m *model) View() tea.View {
	var lines []string
	switch {
	case m.help:
		lines = m.helpLines()
	case m.process.of != nil:
		lines = m.processLines()
	default:
		lines = m.tableLines()
	}
	v := tea.NewView(strings.Join(lines[:min(len(lines), m.height)], "\n"))
	v.AltScreen = true
	return v
}

// line returns text in the width of the screen.
func (m *model) line(text string) string { return cell(text, m.width, true) }

func (m *model) tableLines() []string {
	rows := m.rows
	lines := append(m.summary(), bold+m.header()+normal)
	for i := m.scroll; i < m.scroll+m.body(); i++ {
		switch {
		case i >= len(rows):
			lines = append(lines, m.line(""))
		case rows[i].key == m.chosen:
			lines = append(lines, reverse+m.rowLine(&rows[i], true)+normal)
		default:
			lines = append(lines, m.rowLine(&rows[i], false))
		}
	}
	const keys = "q quit  ? keys  / filter  < > sort  r reverse  space fold  enter processes"
	return append(lines, m.line(m.detail()), m.line(keys))
}

// summary returns the lines about the machine.
func (m *model) summary() []string {
	if m.now == nil {
		state := "asking containerd…"
		if m.err != nil {
			state = "error: " + m.err.Error()
		}
		return []string{m.line("sandboxctl top"), m.line(state)}
	}
	host := m.now.Node
	used := ""
	if m.before != nil {
		if passed := m.now.Time.Sub(m.before.Time); passed > 0 {
			used = fmt.Sprintf(" %s%%", percent(float64(host.CPU-m.before.Node.CPU)/float64(passed)/float64(max(host.CPUs, 1))))
		}
	}
	pods, containers := 0, 0
	for _, p := range m.now.Pods {
		containers += len(p.Containers)
		if p.Sandbox { // else it is a container by itself
			pods++
		}
	}
	first := fmt.Sprintf("%s  CPUs: %d%s  memory: %s of %s  %s  pods: %d  containers: %d",
		m.now.Time.Format(time.TimeOnly), host.CPUs, used, size(host.Memory), size(host.Total), host.Cgroup,
		pods, containers)
	direction := map[bool]string{false: "", true: ", reversed"}[m.order.reverse]
	sorted := "sorted by " + columns[m.order.column].title + direction
	second := fmt.Sprintf("pressure: %s  %s", pressureText(host.Pressure), sorted)
	switch {
	case m.typing:
		second = "filter: " + m.filter + "_"
	case m.err != nil:
		second = "error: " + m.err.Error()
	case m.filter != "":
		second = fmt.Sprintf("filter: %s (esc ends it)  %s", m.filter, sorted)
	}
	return []string{m.line(first), m.line(second)}
}

func pressureText(p measure.Pressure) string {
	var parts []string
	for _, x := range []struct {
		name string
		psi  *measure.PSI
	}{{"cpu", p.CPU}, {"memory", p.Memory}, {"io", p.IO}} {
		if x.psi != nil {
			parts = append(parts, fmt.Sprintf("%s %.1f%%", x.name, x.psi.Some10))
		}
	}
	return cmp.Or(strings.Join(parts, "  "), "-")
}

// marks are the cursor and the fold before a name.
const marks = 3

// nameWidth returns what other columns leave for the name.
func nameWidth(width int) int {
	for _, i := range shown(width) {
		if c := columns[i]; c.width > 0 {
			width -= c.width + 1
		}
	}
	return max(width, marks+8)
}

func (m *model) header() string {
	var cells []string
	for _, i := range shown(m.width) {
		c := columns[i]
		title, width := c.title, c.width
		if width == 0 {
			title, width = strings.Repeat(" ", marks)+title, nameWidth(m.width)
		}
		cells = append(cells, cell(title, width, c.left))
	}
	return m.line(strings.Join(cells, " "))
}

func (m *model) rowLine(r *row, chosen bool) string {
	mark := map[bool]string{false: " ", true: ">"}[chosen]
	switch {
	case r.pod && m.folded[r.key]:
		mark += "+ "
	case r.pod:
		mark += "- "
	case r.inPod:
		mark += "    "
	default:
		mark += "  "
	}
	var cells []string
	for _, i := range shown(m.width) {
		c := columns[i]
		text, width := c.text(r), c.width
		if width == 0 {
			text, width = mark+text, nameWidth(m.width)
		}
		cells = append(cells, cell(text, width, c.left))
	}
	return m.line(strings.Join(cells, " "))
}

// detail returns what a narrow table does not show of the chosen row.
func (m *model) detail() string {
	at := m.cursor()
	if at < 0 {
		if m.now == nil {
			return ""
		}
		return "no containers"
	}
	r := &m.rows[at]
	if r.err != "" {
		return "error: " + r.err
	}
	parts := []string{"shim " + r.shimText()}
	if r.shim.Version != "" {
		parts[0] += " " + r.shim.Version
	}
	if r.shim.RSS > 0 {
		parts[0] += " " + size(r.shim.RSS)
	}
	if r.state != "" {
		parts = append(parts, r.state)
	}
	if r.cpus != "" {
		cpus := "cpus " + r.cpus
		if r.source != "" {
			cpus += " of " + r.source
		}
		parts = append(parts, cpus)
	}
	return strings.Join(append(parts, r.namespace+"/"+r.id), "  ")
}

func (m *model) processLines() []string {
	v := &m.process
	var header []string
	all := processColumns
	left := m.width - marks
	for _, c := range all {
		if c.width > 0 {
			left -= c.width + 1
		}
	}
	width := func(c processColumn) int { return map[bool]int{true: max(left, 8), false: c.width}[c.width == 0] }
	for _, c := range all {
		header = append(header, cell(c.title, width(c), c.left))
	}
	lines := []string{
		m.line(fmt.Sprintf("processes of %s, container %s in namespace %s", v.of.name, v.of.id, v.of.namespace)),
		m.line(v.status()),
		bold + m.line(strings.Repeat(" ", marks)+strings.Join(header, " ")) + normal,
	}
	list := v.sorted()
	at := max(0, min(v.at, len(list)-1))
	top := scrolled(v.scroll, at, len(list), m.processBody())
	for i := top; i < top+m.processBody(); i++ {
		if i >= len(list) {
			lines = append(lines, m.line(""))
			continue
		}
		mark := map[bool]string{true: ">  ", false: "   "}[i == at]
		var cells []string
		for _, c := range all {
			cells = append(cells, cell(c.text(v, list[i]), width(c), c.left))
		}
		text := m.line(mark + strings.Join(cells, " "))
		if i == at {
			text = reverse + text + normal
		}
		lines = append(lines, text)
	}
	return append(lines, m.line(""), m.line("q quit  ? keys  < > sort  esc back"))
}

func (m *model) helpLines() []string {
	text := `keys

  up down k j        choose a row            pgup pgdn home end   further
  enter              processes of a container; on a pod: fold or unfold it
  space              fold or unfold the pod of the row
  + -                unfold, or fold, all pods
  < >  left right    sort by another column  r                    the other way
  /                  filter: a part of a name, id or namespace; a runtime, a state
  esc                end the filter, or go back
  q  ctrl+c          quit

columns

  CPU%     of one CPU                        MEM LIMIT  memory in use, and its limit
  PSI      pressure of c(pu), m(emory) or i(o), the worst: % of the last 10 s
  PIDS     processes and threads             EXEC/S     execs that were started
  OOM      processes killed for memory       THR%       periods of the CPU limit spent waiting
  CPUS     that it may use                   SOURCE     cgroup whose CPUs it follows

any key goes back`
	var lines []string
	for l := range strings.SplitSeq(text, "\n") {
		lines = append(lines, m.line(l))
	}
	for len(lines) < m.height {
		lines = append(lines, m.line(""))
	}
	return lines
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
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

// View implements tea.Model.
func (m *model) View() tea.View {
	lines := m.tableLines()
	v := tea.NewView(strings.Join(lines[:min(len(lines), m.height)], "\n"))
	v.AltScreen = true
	return v
}

// line returns text in the width of the screen.
func (m *model) line(text string) string { return cell(text, m.width, true) }

func (m *model) tableLines() []string {
	lines := append(m.summary(), bold+m.header()+normal)
	for i := m.scroll; i < m.scroll+m.body(); i++ {
		switch {
		case i >= len(m.rows):
			lines = append(lines, m.line(""))
		case m.rows[i].key == m.chosen:
			lines = append(lines, reverse+m.rowLine(&m.rows[i])+normal)
		default:
			lines = append(lines, m.rowLine(&m.rows[i]))
		}
	}
	return append(lines, m.line(m.detail()), m.line("q quit  / filter  < > sort  r reverse"))
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
		m.now.Time.Format(time.TimeOnly), host.CPUs, used, size(float64(host.Memory)), size(float64(host.Total)), host.Cgroup,
		pods, containers)
	sorted := "sorted by " + columns[m.order.column].title
	if m.order.reverse {
		sorted += ", reversed"
	}
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

// shown returns the columns that a terminal of a width has room for, as indexes of columns.
func shown(width int) (list []int) {
	for i, c := range columns {
		if width >= c.from {
			list = append(list, i)
		}
	}
	return list
}

// table returns a line of the table, with mark before the name.
func (m *model) table(mark string, text func(c column) string) string {
	left := m.width // for the name
	for _, i := range shown(m.width) {
		if c := columns[i]; c.width > 0 {
			left -= c.width + 1
		}
	}
	var cells []string
	for _, i := range shown(m.width) {
		c := columns[i]
		if c.width == 0 {
			cells = append(cells, cell(mark+text(c), max(left, 11), true))
			continue
		}
		cells = append(cells, cell(text(c), c.width, c.number == nil))
	}
	return m.line(strings.Join(cells, " "))
}

func (m *model) header() string { return m.table("  ", func(c column) string { return c.title }) }

func (m *model) rowLine(r *row) string {
	mark := "  "
	if r.key == m.chosen {
		mark = "> "
	}
	if r.inPod {
		mark += "  "
	}
	return m.table(mark, func(c column) string { return c.of(r) })
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
	if r.Error != "" {
		return "error: " + r.Error
	}
	text := "shim " + r.shimText()
	if r.shim.Version != "" {
		text += " " + r.shim.Version
	}
	if r.shim.RSS > 0 {
		text += " " + size(float64(r.shim.RSS))
	}
	if r.State != "" {
		text += "  " + r.Shown()
	}
	if r.Usage.CPUs != "" {
		text += "  cpus " + r.Usage.CPUs
	}
	if r.source != "" {
		text += " of " + r.source
	}
	return text + "  " + r.Namespace + "/" + r.ID
}

func count(n float64) string  { return fmt.Sprintf("%.0f", n) }
func tenths(n float64) string { return fmt.Sprintf("%.1f", n) }

// percent returns a share of one as a percentage.
func percent(share float64) string {
	if share >= 9.995 {
		return fmt.Sprintf("%.0f", 100*share)
	}
	return fmt.Sprintf("%.1f", 100*share)
}

// size returns a number of bytes in at most five characters.
func size(value float64) string {
	unit := ""
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

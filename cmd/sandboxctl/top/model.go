// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"slices"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// model is all that the screen shows. Only Update changes it.
type model struct {
	ctx      context.Context //nolint:containedctx // of the program, for what it asks the source
	source   Source
	interval time.Duration

	width, height int

	now, before *node.Snapshot // the last two
	groups      [][]row        // what they say
	rows        []row          // those that the filter leaves, in their order
	err         error          // why there is no newer one

	order  order
	filter string
	typing bool   // keys are text of the filter
	chosen string // key of the row with the cursor
	scroll int    // rows above the screen
}

func newModel(ctx context.Context, s Source, interval time.Duration) *model {
	return &model{
		ctx: ctx, source: s, interval: interval, width: 80, height: 24, order: order{column: byCPU},
	}
}

// answer is what the source returned.
type answer struct {
	snapshot *node.Snapshot
	err      error
}

// tick is the end of an interval.
type tick struct{}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask }

// ask asks the source.
func (m *model) ask() tea.Msg {
	s, err := m.source.Snapshot(m.ctx)
	return answer{s, err}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var next tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case answer:
		if m.err = msg.err; msg.err == nil {
			m.before, m.now = m.now, msg.snapshot
			m.now.SetRates(m.before)
			m.groups = groups(m.now)
		}
		next = tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
	case tick:
		next = m.ask
	case tea.KeyPressMsg:
		next = m.key(msg)
	}
	m.place()
	return m, next
}

// cursor returns the index of the chosen row, or -1 if there is none.
func (m *model) cursor() int {
	return slices.IndexFunc(m.rows, func(r row) bool { return r.key == m.chosen })
}

// place arranges the rows again, chooses one if the chosen one is gone, and scrolls so that it is visible.
func (m *model) place() {
	m.rows = arrange(m.groups, m.order, m.filter)
	at := m.cursor()
	if at < 0 && len(m.rows) > 0 {
		at = min(m.scroll, len(m.rows)-1)
		m.chosen = m.rows[at].key
	}
	m.scroll = max(0, min(max(m.scroll, at-m.body()+1), at, len(m.rows)-m.body()))
}

// key handles a key.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch {
	case name == "ctrl+c", name == "q" && !m.typing:
		return tea.Quit
	case m.typing:
		m.typed(k)
		return nil
	}
	move := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -m.body(), "pgdown": m.body(),
		"home": -len(m.rows), "g": -len(m.rows), "end": len(m.rows), "G": len(m.rows),
	}[name]
	if move != 0 && len(m.rows) > 0 {
		m.chosen = m.rows[max(0, min(m.cursor()+move, len(m.rows)-1))].key
	}
	switch name {
	case "<", "left", ",":
		m.sortBy(-1)
	case ">", "right", ".":
		m.sortBy(1)
	case "r":
		m.order.reverse = !m.order.reverse
	case "/":
		m.typing = true
	case "esc":
		m.filter = ""
	}
	return nil
}

// sortBy chooses the next of the columns that are shown.
func (m *model) sortBy(step int) {
	list := shown(m.width)
	at := max(0, slices.Index(list, m.order.column))
	m.order = order{column: list[(at+step+len(list))%len(list)]}
}

// typed adds to the filter, or ends it.
func (m *model) typed(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		_, last := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-last]
	default:
		m.filter += cli.Printable(k.Text)
	}
}

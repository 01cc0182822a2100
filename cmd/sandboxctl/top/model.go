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
	clock    func() time.Time
	source   Source
	interval time.Duration

	width, height int

	now, before *node.Snapshot // the last two
	groups      []group        // what they say
	rows        []row          // those that the filter and the folds leave, in their order
	err         error          // why there is no newer one

	order   order
	filter  string
	typing  bool // keys are text of the filter
	folded  map[string]bool
	chosen  string // key of the row with the cursor
	scroll  int    // rows above the screen
	help    bool
	process processView

	asking bool // the source is being asked
	again  bool // ask again immediately: what is wanted has changed meanwhile
	ticks  int  // of timers: those of an earlier number are late
}

func newModel(ctx context.Context, s Source, interval time.Duration) *model {
	return &model{
		ctx: ctx, source: s, interval: interval, width: 80, height: 24, order: order{column: byCPU},
		folded: map[string]bool{}, process: newProcessView(), clock: time.Now,
	}
}

// answer is what the source returned.
type answer struct {
	snapshot  *node.Snapshot
	err       error
	of        *target // whose processes
	processes []node.Process
	procAt    time.Time // when their shim had answered
	procErr   error
}

// tick is the end of an interval.
type tick struct{ number int }

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask() }

// ask asks the source, unless it is being asked already.
func (m *model) ask() tea.Cmd {
	if m.asking {
		m.again = true
		return nil
	}
	m.asking, m.again = true, false
	ctx, source, of, clock := m.ctx, m.source, m.process.of, m.clock
	return func() tea.Msg {
		a := answer{of: of}
		a.snapshot, a.err = source.Snapshot(ctx)
		if of != nil {
			a.processes, a.procErr = source.Processes(ctx, of.namespace, of.id)
			a.procAt = clock()
		}
		return a
	}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.place()
	case answer:
		return m, m.take(msg)
	case tick:
		if msg.number == m.ticks {
			return m, m.ask()
		}
	case tea.KeyPressMsg:
		return m, m.key(msg)
	}
	return m, nil
}

// take applies an answer, and waits for the next.
func (m *model) take(a answer) tea.Cmd {
	m.asking = false
	if m.err = a.err; a.err == nil {
		m.before, m.now = m.now, a.snapshot
		m.groups = groups(m.now, m.before)
	}
	if a.of != nil && m.process.of != nil && *a.of == *m.process.of {
		m.process.take(a)
	}
	m.place()
	if m.again {
		return m.ask()
	}
	m.ticks++
	number := m.ticks
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{number} })
}

// cursor returns the index of the chosen row, or -1 if there is none.
func (m *model) cursor() int {
	return slices.IndexFunc(m.rows, func(r row) bool { return r.key == m.chosen })
}

// place arranges the rows again, chooses one if the chosen one is gone, and scrolls so that it is visible.
func (m *model) place() {
	m.rows = arrange(m.groups, m.order, m.filter, m.folded)
	at := m.cursor()
	if at < 0 && len(m.rows) > 0 {
		at = min(m.scroll, len(m.rows)-1)
		m.chosen = m.rows[at].key
	}
	m.scroll = scrolled(m.scroll, at, len(m.rows), m.body())
}

// scrolled returns how far a list is scrolled so that the row at an index is visible, in a window of so many rows.
func scrolled(scroll, at, rows, window int) int {
	if at < scroll {
		scroll = at
	}
	if at >= scroll+window {
		scroll = at - window + 1
	}
	return max(0, min(scroll, rows-window))
}

// move moves the cursor by rows.
func (m *model) move(by int) {
	if len(m.rows) > 0 {
		m.chosen = m.rows[max(0, min(m.cursor()+by, len(m.rows)-1))].key
	}
}

// key handles a key.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	defer m.place()
	switch {
	case k.String() == "ctrl+c":
		return tea.Quit
	case m.typing:
		m.typed(k)
		return nil
	case m.help:
		m.help = false
		return nil
	}
	switch k.String() {
	case "q":
		return tea.Quit
	case "?", "h", "f1":
		m.help = true
		return nil
	}
	if m.process.of != nil {
		return m.process.key(k.String(), m.processBody())
	}
	return m.tableKey(k.String())
}

// tableKey handles a key in the table of pods.
func (m *model) tableKey(name string) tea.Cmd {
	switch name {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-m.body())
	case "pgdown":
		m.move(m.body())
	case "home", "g":
		m.move(-len(m.rows))
	case "end", "G":
		m.move(len(m.rows))
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
	case "space", "tab":
		m.fold()
	case "+", "-":
		m.foldAll(name == "-")
	case "enter":
		return m.open()
	}
	return nil
}

// sortBy chooses the next of the columns that are shown.
func (m *model) sortBy(step int) {
	list := shown(m.width)
	at := max(0, slices.Index(list, m.order.column))
	m.order = order{column: list[(at+step+len(list))%len(list)]}
}

// fold folds or unfolds the pod of the chosen row. The cursor is then on the pod.
func (m *model) fold() {
	for _, g := range m.groups {
		if g.pod && (g.key == m.chosen || slices.ContainsFunc(g.containers, func(r row) bool { return r.key == m.chosen })) {
			m.folded[g.key] = !m.folded[g.key]
			m.chosen = g.key
		}
	}
}

func (m *model) foldAll(on bool) {
	for _, g := range m.groups {
		m.folded[g.key] = on
	}
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

// open shows the processes of the chosen container. A pod is folded or unfolded.
func (m *model) open() tea.Cmd {
	at := m.cursor()
	switch {
	case at < 0:
		return nil
	case m.rows[at].pod:
		m.fold()
		return nil
	}
	m.process = newProcessView()
	m.process.of = &target{m.rows[at].namespace, m.rows[at].id, m.rows[at].name}
	return m.ask()
}

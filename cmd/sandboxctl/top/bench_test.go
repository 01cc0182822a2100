// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
)

// BenchmarkModel is what a look at a hundred containers costs without the source and the terminal.
func BenchmarkModel(b *testing.B) {
	m := newModel(b.Context(), nil, time.Second)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	first, second := many(100, 1), many(100, 2)
	for b.Loop() {
		m.Update(answer{snapshot: first})
		_ = m.View()
		m.Update(answer{snapshot: second})
		_ = m.View()
	}
}

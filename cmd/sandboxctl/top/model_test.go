// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"sandbox.internal/shim/cmd/sandboxctl/node"
)

func TestModel_Sorts(t *testing.T) {
	x := newScreen(t, snapshot(10))
	x.later(snapshot(11))
	x.press("home", ">") // by memory
	x.want("by memory", x.names(), "  shop/db-0\n    postgres\n> shop/web-0\n    nginx\n    sidecar\n  c1")
	x.press("r")
	x.want("reversed", x.names(), "  c1\n> shop/web-0\n    sidecar\n    nginx\n  shop/db-0\n    postgres")
	if got := x.lines()[1]; !strings.Contains(got, "sorted by MEM, reversed") {
		t.Errorf("status = %q, want the order", got)
	}
	x.press("<", "<") // by name
	x.want("by name", x.names(), "  c1\n  shop/db-0\n    postgres\n> shop/web-0\n    nginx\n    sidecar")
	x.press("<") // around, to the last that is shown
	if got := x.lines()[1]; !strings.Contains(got, "sorted by CPUS") {
		t.Errorf("status = %q, want the last column", got)
	}
}

func TestModel_Filters(t *testing.T) {
	x := newScreen(t, snapshot(10))
	x.press("<", "/", "D", "b", "x", "backspace")
	x.want("while typing", x.lines()[1], "filter: Db_")
	x.want("by a pod", x.names(), "> shop/db-0\n    postgres")
	x.press("enter", "/", "q") // no key while it is typed
	x.want("of nothing", x.names(), "")
	x.press("esc", "/", "s", "i", "d", "e", "enter")
	x.want("by a container", x.names(), "> shop/web-0\n    sidecar")
	if got := x.lines()[1]; !strings.HasPrefix(got, "filter: side (esc ends it)") {
		t.Errorf("status = %q, want the filter", got)
	}
	x.press("esc", "/", "r", "u", "n", "c", "enter")
	x.want("by a runtime", x.names(), "> c1")
	x.press("esc")
	x.want("ended", x.names(), "> c1\n  shop/db-0\n    postgres\n  shop/web-0\n    nginx\n    sidecar")
}

func TestModel_TheCursorStaysOnItsRow(t *testing.T) {
	x := newScreen(t, many(50, 10))
	x.later(many(50, 11))
	x.press("home", "down", "down")
	chosen := x.chosen
	x.later(snapshotOf(many(50, 12), func(s *node.Snapshot) { slices.Reverse(s.Pods) }))
	if x.chosen != chosen {
		t.Errorf("chosen = %s after a snapshot, want %s", x.chosen, chosen)
	}
	x.press("end")
	if got := x.names(); !strings.HasSuffix(got, "> c000") || strings.Contains(got, "c049") || strings.Count(got, "\n") != 18 {
		t.Errorf("at the end: %s, want 19 rows, the last chosen", got)
	}
	x.press("pgup")
	if got := x.names(); !strings.HasPrefix(got, "> c019") {
		t.Errorf("a page up: %s, want c019 on top", got)
	}
	gone := x.chosen
	x.later(snapshotOf(many(50, 13), func(s *node.Snapshot) {
		s.Pods = slices.DeleteFunc(s.Pods, func(p node.Pod) bool { return p.ID == "c019" })
	}))
	if x.chosen == gone || x.cursor() < 0 {
		t.Errorf("chosen = %q after its container has gone, want another", x.chosen)
	}
	x.later(many(0, 14))
	x.want("without containers", x.lines()[22], "no containers")
}

func snapshotOf(s *node.Snapshot, change func(*node.Snapshot)) *node.Snapshot { change(s); return s }

func TestModel_AnErrorKeepsWhatWasThere(t *testing.T) {
	x := newScreen(t, snapshot(10))
	before := x.names()
	x.source.err = errors.New("containerd: connection refused")
	x.later(nil)
	x.want("the error", x.lines()[1], "error: containerd: connection refused")
	x.want("rows", x.names(), before)
	x.source.err = nil
	x.later(snapshot(12))
	if got := x.lines()[1]; strings.Contains(got, "error") {
		t.Errorf("after an answer: %q", got)
	}
}

func TestModel_QuitsByKey(t *testing.T) {
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		x := newScreen(t, snapshot(10))
		if key.Mod != 0 {
			x.press("/") // even while the filter is typed
		}
		_, cmd := x.Update(key)
		if cmd == nil {
			t.Fatalf("%s does nothing", key)
		}
		if _, quits := cmd().(tea.QuitMsg); !quits {
			t.Errorf("%s does not quit", key)
		}
	}
}

// What containers name must not reach the terminal as a command of it.
func TestModel_NamesAreText(t *testing.T) {
	evil := "a\x1b]0;title\x07\x1b[2Jb\nc\u202ed"
	x := newScreen(t, snapshotOf(snapshot(10), func(s *node.Snapshot) {
		s.Pods[0].Name, s.Pods[0].Containers[0].Name = evil, evil
		s.Pods[0].Containers[0].Error = evil
	}))
	x.press("end")
	content := x.View().Content
	for _, part := range []string{"\x1b]", "\x1b[2J", "\x07", "\u202e"} {
		if strings.Contains(content, part) {
			t.Errorf("%q reaches the terminal", part)
		}
	}
	if !strings.Contains(content, "a\ufffd]0;title") {
		t.Errorf("the name is not shown: %q", content)
	}
}

// On each size of a terminal, the screen is as large as that, and no line is longer.
func TestModel_FitsTheTerminal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := []string{"up", "down", "pgdown", "pgup", "home", "end", "<", ">", "r", "enter", "esc", "/", "a"}
	x := newScreen(t, snapshot(10))
	for range 2000 {
		width, height := 20+random.IntN(200), 6+random.IntN(60)
		x.send(tea.WindowSizeMsg{Width: width, Height: height})
		x.press(keys[random.IntN(len(keys))])
		lines := strings.Split(x.View().Content, "\n")
		if len(lines) > height {
			t.Fatalf("%d × %d: %d lines", width, height, len(lines))
		}
		for _, l := range lines {
			if got := ansi.StringWidth(l); got != width {
				t.Fatalf("%d × %d: a line of width %d: %q", width, height, got, l)
			}
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/pkg/inspect"
)

// fake is a Source.
type fake struct {
	snapshot *node.Snapshot
	err      error
}

func (f *fake) Snapshot(context.Context) (*node.Snapshot, error) {
	if f.err != nil {
		return nil, f.err
	}
	s := *f.snapshot
	return &s, nil
}

// screen is a model that is driven by messages, as bubbletea does it.
type screen struct {
	*testing.T
	*model
	source *fake
	next   tea.Cmd // what bubbletea would run now
}

var start = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// newScreen is one on which there is the first answer.
func newScreen(t *testing.T, s *node.Snapshot) *screen {
	t.Helper()
	f := &fake{snapshot: s}
	x := &screen{T: t, model: newModel(t.Context(), f, time.Second), source: f}
	x.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	x.next = x.Init()
	x.answer()
	return x
}

func (x *screen) send(msg tea.Msg) {
	x.Helper()
	_, cmd := x.Update(msg)
	if cmd != nil {
		x.next = cmd
	}
}

// answer lets the source answer what it is asked.
func (x *screen) answer() {
	x.Helper()
	x.send(x.next())
}

// later lets the interval pass, and the source answer.
func (x *screen) later(s *node.Snapshot) {
	x.Helper()
	x.source.snapshot = s
	x.send(tick{})
	x.answer()
}

// press sends keys, by their names.
func (x *screen) press(names ...string) {
	x.Helper()
	special := map[string]rune{
		"up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight, "enter": tea.KeyEnter, "esc": tea.KeyEscape,
		"backspace": tea.KeyBackspace, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "home": tea.KeyHome,
		"end": tea.KeyEnd,
	}
	for _, name := range names {
		key := tea.Key{Text: name}
		if code, ok := special[name]; ok {
			key = tea.Key{Code: code}
		} else {
			key.Code = []rune(name)[0]
		}
		if got := key.String(); got != name {
			x.Fatalf("the key %q is called %q", name, got)
		}
		x.send(tea.KeyPressMsg(key))
	}
}

// lines are what is on the screen.
func (x *screen) lines() []string {
	lines := strings.Split(ansi.Strip(x.View().Content), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// names are the first words of the rows, with the marks before them.
func (x *screen) names() string {
	var names []string
	for _, l := range x.lines()[3 : len(x.lines())-2] {
		if l != "" {
			names = append(names, strings.TrimRight(l[:min(len(l), 22)], " "))
		}
	}
	return strings.Join(names, "\n")
}

func (x *screen) want(what, got, want string) {
	x.Helper()
	if got != want {
		x.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

// snapshot is one of a node with two pods and a container, so many seconds after the start.
func snapshot(seconds int) *node.Snapshot {
	psi := func(some float64) *measure.PSI { return &measure.PSI{Some10: some} }
	used := func(cpus float64) time.Duration { return time.Duration(cpus * float64(seconds) * float64(time.Second)) }
	ours := node.Shim{Runtime: "io.containerd.sandbox.v1", Pid: 1001, Version: "0.1.0", RSS: 9 << 20}
	return readThen(&node.Snapshot{
		Time: start.Add(time.Duration(seconds) * time.Second),
		Node: measure.Host{CPUs: 4, CPU: used(1.2), Memory: 3 << 30, Total: 8 << 30, Cgroup: "v2", Pressure: measure.Pressure{CPU: psi(1.5), Memory: psi(0)}},
		Pods: []node.Pod{
			{Namespace: "default", ID: "c1", Name: "c1", Shim: node.Shim{Runtime: "io.containerd.runc.v2", Pid: 1003}, Containers: []node.Container{{
				Namespace: "default", ID: "c1", Name: "c1", Runtime: "io.containerd.runc.v2", State: node.Running, Pid: 31,
				Usage: measure.Usage{Cgroup: "/c", CPU: used(0.05), Memory: 700 << 10, Pids: 1, CPUs: "0-3"},
			}}},
			{Namespace: "k8s.io", ID: "aaaa", Name: "shop/web-0", Sandbox: true, Shim: ours, Containers: []node.Container{
				{
					Namespace: "k8s.io", ID: "a1", Name: "nginx", State: node.Running, Pid: 11, ExecsKnown: true, ExecsStarted: uint64(seconds) * 3,
					Usage: measure.Usage{
						Cgroup: "/c", CPU: used(0.8), Memory: 200 << 20, MemoryLimit: 512 << 20, Pids: 5, PidsLimit: 100, CPUs: "0-1", OOMKills: 2,
						Periods: uint64(seconds) * 10, Throttled: uint64(seconds) * 4, Pressure: measure.Pressure{CPU: psi(12.3), Memory: psi(1)},
					},
					CPUSet: &inspect.CPUSet{Source: "/sys/fs/cgroup/kubepods/pod1"},
				},
				{
					Namespace: "k8s.io", ID: "a2", Name: "sidecar", State: node.Running, Pid: 12, ExecsKnown: true,
					Usage: measure.Usage{Cgroup: "/c", CPU: used(0.1), Memory: 20 << 20, MemoryLimit: 64 << 20, Pids: 2, CPUs: "0-3"},
				},
			}},
			{Namespace: "k8s.io", ID: "bbbb", Name: "shop/db-0", Sandbox: true, Shim: ours, Containers: []node.Container{{
				Namespace: "k8s.io", ID: "b1", Name: "postgres", State: node.Running, Pid: 21, ExecsKnown: true,
				Usage: measure.Usage{Cgroup: "/c", CPU: used(0.3), Memory: 2 << 30, Pids: 20, CPUs: "0-3", Pressure: measure.Pressure{CPU: psi(0), IO: psi(33)}},
			}}},
		},
	})
}

// readThen makes the time of a snapshot that at which its containers were read.
func readThen(s *node.Snapshot) *node.Snapshot {
	for i := range s.Pods {
		for j := range s.Pods[i].Containers {
			s.Pods[i].Containers[j].ReadAt = s.Time
		}
	}
	return s
}

// many is a node with so many containers.
func many(n, seconds int) *node.Snapshot {
	s := &node.Snapshot{Time: start.Add(time.Duration(seconds) * time.Second)}
	for i := range n {
		id := fmt.Sprintf("c%03d", i)
		s.Pods = append(s.Pods, node.Pod{Namespace: "default", ID: id, Name: id, Containers: []node.Container{{
			Namespace: "default", ID: id, Name: id, Usage: measure.Usage{Cgroup: "/c", CPU: time.Duration(seconds*i) * time.Millisecond},
		}}})
	}
	return readThen(s)
}

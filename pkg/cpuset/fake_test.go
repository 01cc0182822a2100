// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/internal/testx"
)

// tree is a directory that looks like a cgroup v2 hierarchy. Nothing computes: a test writes the effective lists itself.
type tree struct {
	testing.TB
	root string
}

// plant returns a tree with a source of CPUs 0-1, and a pod of CPUs 0-7 with a container in it that asks for nothing.
func plant(tb testing.TB) tree {
	tb.Helper()
	w := tree{tb, tb.TempDir()}
	w.write(".", "cpuset.cpus.effective", "0-7")
	w.write(".", "cpuset.mems.effective", "0-1")
	w.mkdir("shared", "0-1", "0-1")
	w.mkdir("pod", "", "0-7")
	w.mkdir("pod/c1", "", "0-7")
	return w
}

func (w tree) path(dir string) string { return filepath.Join(w.root, dir) }

func (w tree) mkdir(dir, requested, effective string) {
	w.Helper()
	testx.Must(w, os.Mkdir(w.path(dir), 0o755))
	for file, text := range map[string]string{
		"cpuset.cpus": requested, "cpuset.cpus.effective": effective, "cpuset.mems": "", "cpuset.mems.effective": "0-1",
	} {
		w.write(dir, file, text)
	}
}

func (w tree) write(dir, file, text string) {
	w.Helper()
	testx.Must(w, os.WriteFile(filepath.Join(w.path(dir), file), []byte(text+"\n"), 0o644))
}

// assign does at a cgroup what a scheduler and the kernel do.
func (w tree) assign(dir, list string) {
	w.Helper()
	w.write(dir, "cpuset.cpus.effective", list)
	w.write(dir, "cpuset.cpus", list)
}

func (w tree) remove(dir string) {
	w.Helper()
	testx.Must(w, os.RemoveAll(w.path(dir)))
}

// read returns the line of a file; what a longer line left behind it is not what the kernel would have.
func (w tree) read(dir, file string) string {
	w.Helper()
	b, err := os.ReadFile(filepath.Join(w.path(dir), file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Fatal(err)
	}
	line, _, _ := bytes.Cut(b, []byte{'\n'})
	return string(line)
}

// wantCPUs compares what a cgroup asks for.
func (w tree) wantCPUs(when, dir, want string) {
	w.Helper()
	if got := w.read(dir, "cpuset.cpus"); got != want {
		w.Errorf("%s: cpuset.cpus of %s = %q, want %q", when, dir, got, want)
	}
}

// follow is container c1 that follows source.
func (w tree) follow(source string) cpuset.Request {
	return cpuset.Request{ID: "c1", Source: source, Dir: w.path("pod/c1")}
}

// gate is a Notifier that a test drives, in the time of a testing/synctest bubble.
type gate struct {
	changed, closed chan struct{}

	mu          sync.Mutex
	files, dirs []string // what is watched
	waits       int      // how often Wait returned
	fail        error    // what Watch answers
}

func newGate() *gate { return &gate{changed: make(chan struct{}, 1)} }

// open opens the gate, again after it was closed.
func (g *gate) open() cpuset.Notifier {
	g.closed = make(chan struct{})
	return g
}

// tell does what a change does.
func (g *gate) tell() {
	select {
	case g.changed <- struct{}{}:
	default: // one is pending
	}
}

func (g *gate) Watch(files, dirs []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files, g.dirs = slices.Clone(files), slices.Clone(dirs)
	return g.fail
}

// watches reports whether a path, below root, is watched.
func (g *gate) watches(root, path string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	path = filepath.Join(root, path)
	return slices.Contains(g.files, path) || slices.Contains(g.dirs, path)
}

func (g *gate) Wait(timeout time.Duration) bool {
	select {
	case <-g.closed:
		return false
	case <-g.changed:
	case <-time.After(timeout):
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits++
	return true
}

// wakeups returns how often Wait returned so far.
func (g *gate) wakeups() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waits
}

func (g *gate) Close() { close(g.closed) }

// logged collects what is logged, for the rest of the test.
type logged struct{ *logtest.Hook }

func listen(tb testing.TB) logged {
	tb.Helper()
	logger := log.L.Logger
	level, out, hooks := logger.GetLevel(), logger.Out, logger.ReplaceHooks(logrus.LevelHooks{})
	logger.SetLevel(logrus.DebugLevel)
	logger.SetOutput(io.Discard)
	tb.Cleanup(func() {
		logger.SetLevel(level)
		logger.SetOutput(out)
		logger.ReplaceHooks(hooks)
	})
	return logged{logtest.NewLocal(logger)}
}

// at returns the messages of a level.
func (l logged) at(level string) (messages []string) {
	for _, entry := range l.AllEntries() {
		if entry.Level.String() == level {
			messages = append(messages, entry.Message)
		}
	}
	return messages
}

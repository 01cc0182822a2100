// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Failpoints makes a shim fail that was built with the tag failpoints: pkg/fail says how. One goroutine at a time may
// use it.
type Failpoints struct {
	tb   testing.TB
	dir  string
	read int // bytes of the log
}

// Passage is that a shim, or its delete command, came to a failpoint.
type Passage struct{ Name, Action string } // the action is "-" where none was set

// NewFailpoints returns failpoints for the shims of env. Their binary has to be another: SHIM_FAILPOINTS_BINARY names
// it.
func NewFailpoints(tb testing.TB, env *Env) *Failpoints {
	tb.Helper()
	binary, err := filepath.Abs(os.Getenv("SHIM_FAILPOINTS_BINARY"))
	if _, absent := os.Stat(binary); err != nil || absent != nil || filepath.Base(binary) != filepath.Base(env.Shim) {
		Lacking(tb, "failpoints", "SHIM_FAILPOINTS_BINARY, which make failpoints builds")
	}
	f := &Failpoints{tb: tb, dir: tb.TempDir()}
	env.Shim, env.Vars = binary, append(slices.Clone(env.Vars), "SHIM_FAILPOINTS="+f.dir)
	return f
}

// Set sets what happens at a failpoint, once.
func (f *Failpoints) Set(name, action string) {
	f.tb.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(action+"\n"), 0o600); err != nil {
		f.tb.Fatal(err)
	}
}

// Reset takes back what was set and did not happen.
func (f *Failpoints) Reset(name string) {
	f.tb.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.tb.Fatal(err)
	}
}

// Hangs returns nil once somebody hangs at a failpoint.
func (f *Failpoints) Hangs(name string) error {
	_, err := os.Stat(filepath.Join(f.dir, name+".hang"))
	return err
}

// Release lets who hangs at a failpoint go on.
func (f *Failpoints) Release(name string) error { return os.Remove(filepath.Join(f.dir, name+".hang")) }

// Passed returns what was passed since the last call.
func (f *Failpoints) Passed() []Passage {
	f.tb.Helper()
	log, err := os.ReadFile(filepath.Join(f.dir, "log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.tb.Fatal(err)
	}
	var all []Passage
	for line := range strings.Lines(string(log[f.read:])) {
		name, action, _ := strings.Cut(strings.TrimSpace(line), " ")
		all = append(all, Passage{name, action})
	}
	f.read = len(log)
	return all
}

var failpoint = regexp.MustCompile(`\bfail\.(?:At|After)\("([^"]+)"`)

// FailpointNames lists the failpoints in the source at root, sorted.
func FailpointNames(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range failpoint.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// kind is a system call that fails with an error in an operation.
type kind struct {
	Op   string `json:"op"`
	Err  string `json:"err"`
	Call string `json:"call"`
}

// result is what came of the runs in which the first, the second… call of a kind failed.
type result struct {
	kind
	Runs    int      `json:"runs"`
	Failed  int      `json:"failed"`  // operations
	Lost    int      `json:"lost"`    // operations whose connection broke
	Runtime int      `json:"runtime"` // ended or hung in Go's runtime
	Bad     []string `json:"bad,omitempty"`
}

func (r result) String() string {
	return fmt.Sprintf("%d runs, %d failed, %d lost the connection, %d ended Go's runtime or hung there, %d are wrong",
		r.Runs, r.Failed, r.Lost, r.Runtime, len(r.Bad))
}

// sweep is the whole of it, with what earlier runs have written to the same file. Tests that run at the same time use it.
type sweep struct {
	tb   testing.TB
	file *os.File // gets a line for each kind; nil: none

	mu      sync.Mutex
	results map[kind]result // guarded by mu
	order   []kind          // guarded by mu
}

// newSweep goes on where an earlier run has ended that wrote to the file; with an empty name nothing is kept.
func newSweep(tb testing.TB, name string) *sweep {
	tb.Helper()
	s := &sweep{tb: tb, results: map[kind]result{}}
	if name == "" {
		return s
	}
	if err := s.load(name); err != nil {
		tb.Fatal(err)
	}
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		s.file, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.file.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func (s *sweep) load(name string) error {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.keep(r)
	}
	return lines.Err()
}

// keep has a result in the table. A later one of the same kind replaces it.
func (s *sweep) keep(r result) {
	if _, ok := s.results[r.kind]; !ok {
		s.order = append(s.order, r.kind)
	}
	s.results[r.kind] = r
}

// add keeps a result, in the file too.
func (s *sweep) add(r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(r)
	if s.file == nil {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = s.file.Write(append(line, '\n'))
	}
	if err != nil {
		s.tb.Error(err)
	}
}

// done reports whether a kind is done.
func (s *sweep) done(k kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.results[k]
	return ok
}

// has reports whether all kinds of an operation are done.
func (s *sweep) has(op string, errs []string, kinds func(op, errno string) []string) bool {
	for _, e := range errs {
		for _, c := range kinds(op, e) {
			if !s.done(kind{op, e, c}) {
				return false
			}
		}
	}
	return true
}

// sum adds up the results of an operation with an error.
func (s *sweep) sum(op, errno string) (all result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.results {
		if k.Op == op && k.Err == errno {
			all.Runs += r.Runs
			all.Failed += r.Failed
			all.Lost += r.Lost
			all.Runtime += r.Runtime
			all.Bad = append(all.Bad, r.Bad...)
		}
	}
	return all
}

// report writes the table, to the log and to the file SHIM_SWEEP_TABLE.
func (s *sweep) report(t *testing.T, ops, errs []string) {
	t.Helper()
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "operation\t%s\n", strings.Join(errs, "\t"))
	for _, o := range ops {
		row := []string{o}
		for _, e := range errs {
			r := s.sum(o, e)
			row = append(row, fmt.Sprintf("%d/%d/%d", r.Runs, r.Failed+r.Lost, len(r.Bad)))
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush() // into memory
	b.WriteString("\ncalls that failed / operations that failed by it / shims that died, hung or left something, or said nothing of the step\n")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.order {
		for _, text := range s.results[k].Bad {
			b.WriteString("\n" + text + "\n")
		}
	}
	t.Log("\n" + b.String())
	if name := os.Getenv("SHIM_SWEEP_TABLE"); name != "" {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func TestSweep_GoesOnWhereItWasEnded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "dir", "results")
	first, second := kind{"create", "EIO", "read"}, kind{"create", "EIO", "write"}
	s := newSweep(t, name)
	s.add(result{kind: first, Runs: 3, Failed: 1, Bad: []string{"died"}})
	again := newSweep(t, name)
	all := func(_, _ string) []string { return []string{"read", "write"} }
	if !again.done(first) || again.done(second) || again.has("create", []string{"EIO"}, all) {
		t.Errorf("results = %v, want the first kind and not the second", again.results)
	}
	again.add(result{kind: second, Runs: 2})
	if got := again.sum("create", "EIO"); got.Runs != 5 || got.Failed != 1 || len(got.Bad) != 1 {
		t.Errorf("sum = %v, want 5 runs, 1 failed, 1 wrong", got)
	}
	if !newSweep(t, name).has("create", []string{"EIO"}, all) {
		t.Error("the operation is not done after both")
	}
}

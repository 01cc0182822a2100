// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clientCase is what somebody does with Docker.
type clientCase struct {
	name   string
	script string
	want   string         // the script's output
	run    func(*session) // is done before the script
	mask   *regexp.Regexp // lines that may differ, because of reason
	reason string
	runc   string // why the case fails with the runc shim
	ours   string // why it fails with ours
	both   string // why it fails with each
}

// runtimes are Docker's names of the runc shim and of ours.
func runtimes() []string { return []string{"runc", "sandbox"} }

// compare runs cases with both runtimes.
func compare(t *testing.T, d *dockerd, cases []clientCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var accounts []string
			var failed []error
			for _, runtime := range runtimes() {
				account, err := d.play(t.Context(), c, runtime)
				if c.mask != nil {
					account = c.mask.ReplaceAllString(account, "<"+c.reason+">")
				}
				accounts, failed = append(accounts, account), append(failed, err)
			}
			c.judge(t, failed)
			if failed[0] == nil && failed[1] == nil && accounts[0] != accounts[1] {
				t.Errorf("the two differ (-runc +sandbox):\n%s", cmp.Diff(accounts[0], accounts[1]))
			}
			if t.Failed() {
				t.Log(d.logs())
			}
			seen.add(c)
		})
	}
}

// judge holds what failed against what the case says of failures.
func (c clientCase) judge(t *testing.T, failed []error) {
	t.Helper()
	want := []bool{c.runc+c.both != "", c.ours+c.both != ""}
	for i, runtime := range runtimes() {
		if failed[i] != nil && !want[i] {
			t.Errorf("%s: %v", runtime, failed[i])
		}
		if failed[i] == nil && want[i] {
			t.Errorf("%s: passed, and the table says that it fails: %s%s%s", runtime, c.runc, c.ours, c.both)
		}
	}
}

// perRun names what docker inspect says that differs between any two runs.
var perRun = []string{"Created", "FinishedAt", "Log", "Pid", "Runtime", "SandboxKey", "StartedAt"}

// inspect puts what docker inspect says of the containers that there are into the account.
func (s *session) inspect() {
	ids, err := s.docker(s.ctx, nil, "ps", "--all", "--quiet", "--no-trunc")
	s.must(err, "list containers")
	list := strings.Fields(ids)
	if len(list) == 0 {
		return
	}
	text, err := s.docker(s.ctx, nil, append([]string{"inspect"}, list...)...)
	s.must(err, "inspect")
	var all []map[string]any
	s.must(json.Unmarshal([]byte(text), &all), "inspect")
	slices.SortFunc(all, func(a, b map[string]any) int { return strings.Compare(fmt.Sprint(a["Name"]), fmt.Sprint(b["Name"])) })
	for _, said := range all {
		without(said)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	s.must(e.Encode(all), "inspect")
	s.account.Write(out.Bytes())
}

// without removes what is volatile from parsed JSON.
func without(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range perRun {
			delete(v, name)
		}
		for _, child := range v {
			without(child)
		}
	case []any:
		for _, child := range v {
			without(child)
		}
	}
}

const (
	tableFile  = "../../docs/compatibility.md"
	tableBegin = "<!-- clients:begin -->\n"
	tableEnd   = "<!-- clients:end -->\n"
)

// results is the cases that have been run.
type results struct {
	mu   sync.Mutex
	rows []string
}

func (r *results) add(c clientCase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cell := func(reasons ...string) string {
		for _, reason := range reasons {
			if reason != "" {
				return "fails: " + reason
			}
		}
		return "passed"
	}
	ours := cell(c.ours, c.both)
	if c.mask != nil && c.ours+c.both == "" {
		ours += ". Differs: " + c.reason
	}
	r.rows = append(r.rows, fmt.Sprintf("| %s | %s | %s |\n", c.name, cell(c.runc, c.both), ours))
}

// write replaces the table in docs/compatibility.md.
func (r *results) write(d *dockerd) error {
	text, err := os.ReadFile(tableFile)
	if err != nil {
		return err
	}
	version, err := d.docker(context.Background(), nil, "version", "--format", "{{.Client.Version}}")
	if err != nil {
		return err
	}
	group, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	on := "cgroup v2"
	if err != nil || len(group) == 0 {
		on = "cgroup v1"
	}
	head, rest, found := strings.Cut(string(text), tableBegin)
	_, tail, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		return fmt.Errorf("%s has no %q and %q", tableFile, tableBegin, tableEnd)
	}
	table := fmt.Sprintf("dockerd %s, docker %s, containerd %s, %s:\n\n| case | runc shim | this shim |\n| --- | --- | --- |\n%s",
		d.programs.Version, strings.TrimSpace(version), d.Version, on, strings.Join(r.rows, ""))
	return os.WriteFile(tableFile, []byte(head+tableBegin+table+tableEnd+tail), 0o644)
}

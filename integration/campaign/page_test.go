// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// part is the totals of one run.
func part(runtime, cgroup, shim string, day int, seed uint64, operations int) Totals {
	return Totals{
		Runtime: runtime, Seeds: []uint64{seed}, Time: time.Hour, Operations: operations, Found: map[Kind]int{Leak: day},
		Origins: []Origin{{
			Begun: time.Date(2026, 11, day, 12, 30, 0, 0, time.UTC), Shim: shim, Containerd: "2.4.2", Kernel: "6.18",
			Cgroup: cgroup, CPUs: 2,
		}},
	}
}

func TestSum_AddsUpWhatRanOnTheSameCgroups(t *testing.T) {
	list := Sum([]Totals{
		part(harness.Ours, "v1, with v2 beside it (hybrid)", "0.1.0+a", 1, 7, 1000),
		part("io.containerd.runc.v2", "v2", "2.4.2", 2, 7, 30),
		part(harness.Ours, "v1, with v2 beside it (hybrid)", "0.1.0+b", 3, 8, 234567),
		part(harness.Ours, "v2", "0.1.0+b", 3, 8, 5),
	})
	got := page(list)
	const want = `- this shim, cgroup hybrid: 2026-11-01 to 2026-11-03, 2h0m0s, by the seeds 7, 8. ` +
		`Builds 0.1.0+a to 0.1.0+b. containerd 2.4.2, Linux 6.18, 2 CPUs.
- runc shim, cgroup v2: 2026-11-02, 1h0m0s, by the seeds 7. Builds 2.4.2. containerd 2.4.2, Linux 6.18, 2 CPUs.
- this shim, cgroup v2: 2026-11-03, 1h0m0s, by the seeds 8. Builds 0.1.0+b. containerd 2.4.2, Linux 6.18, 2 CPUs.

| | this shim, cgroup hybrid | runc shim, cgroup v2 | this shim, cgroup v2 |
|---|---|---|---|
| operations | 235,567 | 30 | 5 |
`
	if !strings.HasPrefix(got, want) {
		t.Errorf("page = %s\nwant %s…", got, want)
	}
	if !strings.Contains(got, "| leaks | 4 | 2 | 3 |\n") {
		t.Errorf("page = %s\nwant the sums of leaks", got)
	}
}

func TestWritePage_ReplacesWhatIsBetweenTheMarks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "page.md")
	const pageBegin, pageEnd = "<!-- campaign:begin -->\n", "<!-- campaign:end -->\n"
	must(t, os.WriteFile(name, []byte("# Before\n"+pageBegin+"old\n"+pageEnd+"After\n"), 0o600))
	totals := part(harness.Ours, "v1", "0.1.0+a", 1, 7, 1000)
	must(t, WritePage(name, totals))
	text, err := os.ReadFile(name)
	must(t, err)
	if want := "# Before\n" + pageBegin + page([]Totals{totals}) + pageEnd + "After\n"; string(text) != want {
		t.Errorf("page = %s\nwant %s", text, want)
	}
	must(t, os.WriteFile(name, []byte("# No marks\n"), 0o600))
	if err := WritePage(name, totals); err == nil || !strings.Contains(err.Error(), "campaign:begin") {
		t.Errorf("WritePage without marks = %v, want an error that names them", err)
	}
}

// What is kept is read again, and no two runs have one file.
func TestLoadAll_ReadsWhatWasSaved(t *testing.T) {
	dir := t.TempDir()
	for _, totals := range []Totals{
		part(harness.Ours, "v1", "0.1.0+a", 2, 7, 1), part(harness.Ours, "v2", "0.1.0+a", 2, 7, 2),
		part(harness.Ours, "v1", "0.1.0+a", 1, 8, 3),
	} {
		must(t, totals.Save(filepath.Join(dir, totals.FileName())))
	}
	list, err := LoadAll(dir)
	must(t, err)
	if len(list) != 3 || list[0].Operations != 3 {
		t.Errorf("LoadAll = %+v, want the three, the oldest first", list)
	}
}

func TestContinue_NotesAnotherBuild(t *testing.T) {
	totals := part(harness.Ours, "v1", "0.1.0+a", 1, 7, 1)
	next := totals.Origins[0]
	next.Begun = next.Begun.Add(time.Hour)
	totals.Continue(next)
	if len(totals.Origins) != 1 {
		t.Errorf("origins = %+v, want one: the build is the same", totals.Origins)
	}
	next.Shim = "0.1.0+b"
	totals.Continue(next)
	if len(totals.Origins) != 2 {
		t.Errorf("origins = %+v, want two builds", totals.Origins)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable_KeepsTheColumnsOfOtherMachines(t *testing.T) {
	text := "before\n<!-- x:begin -->\n<!-- x:end -->\nafter\n"
	for _, c := range []Column{
		{"x", "cgroup v2", "x 1", []Row{{"a", "passed"}, {"gone", "passed"}}},
		{"x", "cgroup v1", "x 1", []Row{{"a", "old"}}},
		{"x", "cgroup v1", "x 2", []Row{{"a", "fails: why"}, {"b", "passed"}}},
	} {
		var err error
		if text, err = c.into(text); err != nil {
			t.Fatal(err)
		}
	}
	want := "before\n<!-- x:begin -->\n| case | cgroup v1 | cgroup v2 |\n| --- | --- | --- |\n| a | fails: why | passed |\n" +
		"| b | passed | |\n\n- cgroup v1: x 2\n- cgroup v2: x 1\n<!-- x:end -->\nafter\n"
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	if text, err := (Column{Kind: "y"}).into(text); err == nil {
		t.Errorf("into a page without its marks = %q, want an error", text)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable_KeepsTheColumnsOfOtherMachines(t *testing.T) {
	var text string
	for _, c := range []Column{
		{"x", "cgroup v2", "x 1", []Row{{"a", "passed"}, {"gone", "passed"}}},
		{"x", "cgroup v1", "x 1", []Row{{"a", "old"}}},
		{"x", "cgroup v1", "x 2", []Row{{"a", "fails: why"}, {"b", "passed"}}},
	} {
		text = c.into(text)
	}
	want := "| case | cgroup v1 | cgroup v2 |\n| --- | --- | --- |\n| a | fails: why | passed |\n" +
		"| b | passed | |\n\n- cgroup v1: x 2\n- cgroup v2: x 1\n"
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

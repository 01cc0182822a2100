// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithRow_ReplacesThatOfTheSameMachine(t *testing.T) {
	const (
		oldKernel = "| 5.10.0-46-amd64 | apparmor | v2 | amd64 | 2026-01-01 | passed | a 1 |\n"
		newKernel = "| 5.10.0-47-amd64 | apparmor | v2 | amd64 | 2026-02-02 | **failed** | a 1 (0, 1) |\n"
		systemd   = "| 5.10.0-46-amd64 | apparmor | v2, systemd | amd64 | 2026-01-01 | passed | a 1 |\n"
		other     = "| 6.1.0-56-amd64 | apparmor | v2 | amd64 | 2026-01-01 | passed | a 1 |\n"
	)
	page := func(rows string) string { return "before\n" + rowsBegin + rowsHead + rows + rowsEnd + "\nafter\n" }
	for name, tt := range map[string]struct{ page, row, want string }{
		"the first":        {"before\n" + rowsBegin + rowsEnd + "\nafter\n", other, page(other)},
		"the same machine": {page(oldKernel + systemd + other), newKernel, page(systemd + newKernel + other)},
	} {
		got, err := withRow(tt.page, tt.row)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("withRow, %s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if got, err := withRow("no region\n", other); err == nil {
		t.Errorf("withRow of a page without a region = %q, want an error", got)
	}
}

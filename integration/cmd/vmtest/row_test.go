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
	for name, tt := range map[string]struct{ table, row, want string }{
		"the first":        {"", other, rowsHead + other},
		"the same machine": {rowsHead + oldKernel + systemd + other, newKernel, rowsHead + systemd + newKernel + other},
	} {
		if diff := cmp.Diff(tt.want, withRow(tt.table, tt.row)); diff != "" {
			t.Errorf("withRow, %s (-want +got):\n%s", name, diff)
		}
	}
}

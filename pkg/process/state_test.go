// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/lifecycle.golden")

// The matrix is for people too: docs/events.md shows it.
func TestState_LifecycleMatrix(t *testing.T) {
	var b strings.Builder
	for _, m := range []struct {
		name  string
		table map[State]map[Op]State
	}{{"init", initTable}, {"exec", execTable}} {
		fmt.Fprintf(&b, "%-8s", m.name)
		for s := range State(len(stateNames)) {
			fmt.Fprintf(&b, "  %-8v", s)
		}
		b.WriteString("\n")
		for op := range Op(len(opNames)) {
			fmt.Fprintf(&b, "%-11v", op)
			for s := range State(len(stateNames)) {
				fmt.Fprintf(&b, "  %-8s", cell(m.table, s, op))
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	got := trimLines(b.String())
	golden := filepath.Join("testdata", "lifecycle.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("matrix differs from %s (-want +got); go test -update writes it:\n%s", golden, diff)
	}
}

func cell(table map[State]map[Op]State, s State, op Op) string {
	to, err := next(table, s, op)
	switch {
	case err == nil:
		return to.String()
	case errdefs.IsNotFound(err):
		return "NotFound"
	case errdefs.IsFailedPrecondition(err):
		return "-"
	}
	return "?" + err.Error()
}

func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

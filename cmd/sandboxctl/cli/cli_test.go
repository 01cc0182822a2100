// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cli

import "testing"

func TestPrintable(t *testing.T) {
	for text, want := range map[string][2]string{
		"ready: 3 of 4 äöü": {"ready: 3 of 4 äöü", "ready: 3 of 4 äöü"},
		"\x1b[2J\rx\n":      {"\ufffd[2J\ufffdx\ufffd", "\ufffd[2J\ufffdx\n"},
		"a\tb":              {"a\ufffdb", "a\tb"},
		"\u202etxt":         {"\ufffdtxt", "\ufffdtxt"},
		"\xff":              {"\ufffd", "\ufffd"},
	} {
		if got := [2]string{Printable(text), PrintableText(text)}; got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}

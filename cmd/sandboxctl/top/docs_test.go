// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/sandboxctl-top.md")

// The picture in the documentation is what the program shows, but for empty lines.
func TestModel_IsThePictureOfTheDocs(t *testing.T) {
	const file = "../../../docs/sandboxctl-top.md"
	x := newScreen(t, snapshot(10))
	x.later(snapshot(11))
	x.press("home", "down")
	table := strings.TrimRight(strings.Join(x.lines()[:22], "\n"), "\n")
	foot := strings.Join(x.lines()[22:], "\n")
	picture := "<!-- top:begin -->\n```text\n" + table + "\n\n" + foot + "\n```\n<!-- top:end -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)<!-- top:begin -->.*<!-- top:end -->`)
	want := part.ReplaceAllLiteralString(string(text), picture)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !part.Match(text) || string(text) != want {
		t.Error("docs/sandboxctl-top.md has another picture: go test ./top -run Docs -update")
	}
}

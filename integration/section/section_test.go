// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package section

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRewrite_ChangesTheSectionAlone(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const text = "# Title\n<!-- a:begin -->\n1\n<!-- a:end -->\nmore\n<!-- b:begin -->\n<!-- b:end -->\nThe rest.\n"
	if err := os.WriteFile(page, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := Rewrite(page, "a", func(former string) string { return former + "2\n" }); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(text, "1\n", "1\n2\n", 1); string(got) != want {
		t.Errorf("page = %q, want %q", got, want)
	}
	if info, err := os.Stat(page); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode of the page = %v, %v, want the one that it had", info.Mode(), err)
	}
}

func TestRewrite_RefusesAPageWithoutTheSection(t *testing.T) {
	const text = "<!-- a:end -->\n<!-- a:begin -->\n<!-- ab:begin -->\n<!-- ab:end -->\n"
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		err := Rewrite(page, name, func(string) string { return "new\n" })
		if err == nil || !strings.Contains(err.Error(), page) || !strings.Contains(err.Error(), "<!-- "+name+":begin -->") {
			t.Errorf("section %q: error %v, want one that names the page and the line", name, err)
		}
	}
	if got, err := os.ReadFile(page); string(got) != text || err != nil {
		t.Errorf("page = %q, %v, want %q", got, err, text)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package section

import (
	"os"
	"path/filepath"
	"reflect"
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

func TestBlocks_InOrderAndWithoutIndent(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const text = "Text.\n\n```sh\necho a\n```\n- item:\n\n  ```json\n  {\n    \"b\": 1\n  }\n  ```\n\n    indented text\n\n```sh\necho c\n\necho d\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Blocks(page)
	want := []Code{{"sh", "echo a\n"}, {"json", "{\n  \"b\": 1\n}\n"}, {"sh", "echo c\n\necho d\n"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Blocks = %q, %v, want %q", got, err, want)
	}
	if got, err := Block(page, "sh", "echo d"); err != nil || got != want[2].Text {
		t.Errorf("Block = %q, %v, want the one with the text", got, err)
	}
	for has, language := range map[string]string{"echo": "sh", "echo a": "json"} {
		if got, err := Block(page, language, has); err == nil {
			t.Errorf("Block of %s with %q = %q, want an error: there is not one alone", language, has, got)
		}
	}
}

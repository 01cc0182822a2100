// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package section

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

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

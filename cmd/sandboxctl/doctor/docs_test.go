// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/sandboxctl-doctor.md")

func TestChecks_AreTheTableOfTheDocs(t *testing.T) {
	const file = "../../../docs/sandboxctl-doctor.md"
	var b strings.Builder
	b.WriteString("<!-- checks:begin -->\n| check | looks at | fixed by |\n|---|---|---|\n")
	for _, c := range Checks() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Name, c.What, strings.ReplaceAll(c.Fix, "|", `\|`))
	}
	b.WriteString("<!-- checks:end -->")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?s)<!-- checks:begin -->.*<!-- checks:end -->`)
	want := table.ReplaceAllLiteralString(string(text), b.String())
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !table.Match(text) || string(text) != want {
		t.Error("docs/sandboxctl-doctor.md has another table: go test ./doctor -run TestChecks -update")
	}
}

// The releases that are said to be supported are those of the series that are tested.
func TestContainerdVersion_IsThatOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(text), "<!-- versions:end -->")
	oldest, newest := 99_99, 0
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+)\.(\d+)\.\d+ \|`).FindAllStringSubmatch(table, -1) {
		var major, minor int
		if _, err := fmt.Sscan(m[1], &major); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(m[2], &minor); err != nil {
			t.Fatal(err)
		}
		oldest, newest = min(oldest, major*100+minor), max(newest, major*100+minor)
	}
	if oldest != oldestContainerd || newest != newestContainerd {
		t.Errorf("supported are %d to %d, docs/compatibility.md has %d to %d", oldestContainerd, newestContainerd, oldest, newest)
	}
}

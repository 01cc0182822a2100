// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

const hostilePage = "docs/hostile.md"

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	cve      = regexp.MustCompile(`CVE-\d{4}-\d+`)
)

// Each test that the page names is there, and each row names one or says why the attack cannot be tried.
func TestHostile_NamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile(hostilePage)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.test() && fn.Recv == nil {
				there[fn.Name.Name] = true
			}
		}
	}
	for _, m := range testName.FindAllStringSubmatch(string(page), -1) {
		if !there[m[1]] {
			t.Errorf("%s names %s, which does not exist", hostilePage, m[1])
		}
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(line, "tried by |\n") {
			continue
		}
		rows++
		if !testName.MatchString(line) && !strings.Contains(line, "cannot ") {
			t.Errorf("%s: neither a test nor a reason: %s", hostilePage, line)
		}
	}
	if rows == 0 {
		t.Errorf("%s has no table", hostilePage)
	}
}

func TestHostile_ListsEachCVEOfATest(t *testing.T) {
	page, err := os.ReadFile(hostilePage)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, name := range cve.FindAllString(string(page), -1) {
		listed[name] = true
	}
	for _, f := range goFiles(t) {
		for _, name := range cve.FindAllString(f.text, -1) {
			if !listed[name] {
				t.Errorf("%s names %s, which %s does not list", f.path, name, hostilePage)
			}
		}
	}
}

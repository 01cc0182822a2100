// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// step is a line of a flow in ARCHITECTURE.md: a function, and the file that has it.
type step struct{ path, function string }

var (
	flowTitle = regexp.MustCompile(`^\*\*(.+?)\.?\*\*`)
	flowStep  = regexp.MustCompile("^\\d+\\. `([^`]+\\.go)` `([^`]+)`")
)

// flows are the numbered lists of functions below "How a request flows", by title.
func flows(t *testing.T) map[string][]step {
	t.Helper()
	data, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "## How a request flows\n")
	section, _, _ = strings.Cut(section, "\n## ")
	all := map[string][]step{}
	var title string
	for line := range strings.Lines(section) {
		if m := flowTitle.FindStringSubmatch(line); m != nil {
			title = m[1]
		}
		if m := flowStep.FindStringSubmatch(line); m != nil {
			all[title] = append(all[title], step{m[1], m[2]})
		}
	}
	return all
}

// functions are the declarations of functions and methods, the latter as Type.Method, of the files that are no tests.
func functions(t *testing.T) map[step]*ast.FuncDecl {
	t.Helper()
	all := map[step]*ast.FuncDecl{}
	for _, f := range goFiles(t) {
		if f.test() {
			continue
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				name = receiver(fn.Recv.List[0].Type) + "." + name
			}
			all[step{filepath.ToSlash(f.path), name}] = fn
		}
	}
	return all
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// mentions reports whether fn has name in it: it calls it, or hands it on to be called.
func mentions(fn *ast.FuncDecl, name string) bool {
	found := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// A function comes after one that calls it, so that a flow is read from top to bottom.
func TestArchitecture_FlowsAreThoseOfTheCode(t *testing.T) {
	declared := functions(t)
	all := flows(t)
	for _, want := range []string{"Create", "Start", "Exec", "Exit", "Delete", "CreateSandbox", "A change of CPUs"} {
		if len(all[want]) < 2 {
			t.Errorf("ARCHITECTURE.md has %d functions of the flow %q, want a list of them", len(all[want]), want)
		}
	}
	for title, steps := range all {
		for i, s := range steps {
			fn := declared[s]
			if fn == nil {
				t.Errorf("%s: %s has no function %s", title, s.path, s.function)
				continue
			}
			called := slices.ContainsFunc(steps[:i], func(before step) bool {
				caller := declared[before]
				return caller != nil && mentions(caller, fn.Name.Name)
			})
			if i > 0 && !called {
				t.Errorf("%s: none of the functions before %s calls it", title, s.function)
			}
		}
	}
}

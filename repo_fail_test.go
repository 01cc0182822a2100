// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"bytes"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// program is the shim's functions, for rules about failpoints (pkg/fail).
type program struct {
	functions map[step]*ast.FuncDecl
	has       map[*ast.FuncDecl]bool // whether it has a failpoint, or a function of its package that it calls has
}

func shimProgram(t *testing.T) program {
	t.Helper()
	p := program{functions(t), map[*ast.FuncDecl]bool{}}
	maps.DeleteFunc(p.functions, func(at step, fn *ast.FuncDecl) bool {
		ours := strings.HasPrefix(at.path, "pkg/") || strings.HasPrefix(at.path, "cmd/containerd-shim-sandbox-v1/")
		return !ours || fn.Body == nil || path.Dir(at.path) == "pkg/fail"
	})
	for _, fn := range p.functions {
		p.has[fn] = hasFailpoint(fn.Body)
	}
	for grown := true; grown; {
		grown = false
		for at, fn := range p.functions {
			for _, call := range calls(fn.Body) {
				if p.has[fn] || call.guarded {
					continue
				}
				if slices.ContainsFunc(p.callees(at, call), func(callee *ast.FuncDecl) bool { return p.has[callee] }) {
					p.has[fn], grown = true, true
				}
			}
		}
	}
	return p
}

// callees are the functions that a call may be of: those of its package with the name, or else of others.
func (p program) callees(from step, c call) (own []*ast.FuncDecl) {
	var others []*ast.FuncDecl
	for at, fn := range p.functions {
		switch {
		case fn.Name.Name != c.name:
		case path.Dir(at.path) == path.Dir(from.path):
			own = append(own, fn)
		case c.of == "" || c.of == path.Base(path.Dir(at.path)) || fn.Recv != nil:
			others = append(others, fn)
		}
	}
	if len(own) > 0 {
		return own
	}
	return others
}

// call is a call of a function or a method.
type call struct {
	of, name string // of is what stands before the dot, if that is a word
	guarded  bool   // it is the step of a failpoint
	joined   bool   // its error is joined to another, or is called undo or undone, as that of what undoes a step
}

// calls lists those in n.
func calls(n ast.Node) (all []call) {
	var visit func(n ast.Node, c call)
	visit = func(n ast.Node, outer call) {
		ast.Inspect(n, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok {
				if last, ok := a.Lhs[len(a.Lhs)-1].(*ast.Ident); ok && strings.HasPrefix(last.Name, "undo") {
					visit(a.Rhs[0], call{joined: true})
					return false
				}
			}
			e, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			c := call{guarded: outer.guarded, joined: outer.joined}
			switch f := e.Fun.(type) {
			case *ast.Ident:
				c.name = f.Name
			case *ast.SelectorExpr:
				c.name = f.Sel.Name
				if x, ok := f.X.(*ast.Ident); ok {
					c.of = x.Name
				}
			}
			all = append(all, c)
			inner := call{guarded: c.guarded || failpoint(e) != ""}
			for i, arg := range e.Args {
				inner.joined = c.of == "errors" && c.name == "Join" && i > 0 && isError(e.Args[0])
				visit(arg, inner)
			}
			visit(e.Fun, call{})
			return false
		})
	}
	visit(n, call{})
	return all
}

// isError reports whether an expression is an error that a step had, not a step.
func isError(e ast.Expr) bool {
	c, isCall := e.(*ast.CallExpr)
	if !isCall {
		return true
	}
	f, ok := c.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "Errorf"
}

// failpoint is the name of the failpoint that n is, as it is written, or "" if it is none.
func failpoint(n ast.Node) string {
	e, ok := n.(*ast.CallExpr)
	if !ok || len(e.Args) == 0 {
		return ""
	}
	f, ok := e.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "fail" {
		return ""
	}
	if name, ok := e.Args[0].(*ast.BasicLit); ok {
		return name.Value
	}
	return "that is no literal"
}

func hasFailpoint(n ast.Node) (has bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		has = has || failpoint(n) != ""
		return !has
	})
	return has
}

func TestFailpoints_HaveNamesOfTheirOwn(t *testing.T) {
	name := regexp.MustCompile(`^"[a-z]+(-undo)?\.[a-z]+(-[a-z]+)*"$`)
	where := map[string]string{}
	for at, fn := range shimProgram(t).functions {
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch point := failpoint(n); {
			case point == "":
			case !name.MatchString(point):
				t.Errorf("%s: failpoint %s: the name must be a literal, operation.step", at.path, point)
			case where[point] != "":
				t.Errorf("failpoint %s stands in %s and in %s", point, where[point], at.path)
			default:
				where[point] = at.path
			}
			return true
		})
	}
	if len(where) == 0 {
		t.Error("there are no failpoints")
	}
}

// A build without the tag has neither the names nor the package, in whatever form: symbols are not stripped here.
func TestFailpoints_AreNotInTheDefaultBuild(t *testing.T) {
	build := func(tags string) []byte {
		t.Helper()
		binary := filepath.Join(t.TempDir(), "shim")
		const program = "./cmd/containerd-shim-sandbox-v1"
		cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", tags, "-o", binary, program)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		data, err := os.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	without, with := build("seccomp"), build("seccomp failpoints")
	traces := []string{"pkg/fail.At", "pkg/fail.After", "pkg/fail/", "SHIM_FAILPOINTS", "failpoint"}
	for _, fn := range shimProgram(t).functions {
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if point := failpoint(n); point != "" {
				traces = append(traces, strings.Trim(point, `"`))
			}
			return true
		})
	}
	for _, trace := range traces {
		if bytes.Contains(without, []byte(trace)) {
			t.Errorf("the default build has %q", trace)
		}
		if !bytes.Contains(with, []byte(trace)) {
			t.Errorf("the build with the tag failpoints lacks %q, so that its absence proves nothing", trace)
		}
	}
}

// What a hook makes for a container, and what it removes, can fail in a test.
func TestFailpoints_AreInEveryHook(t *testing.T) {
	makesNothing := []string{"pkg/cpuset Hook.Prepare", "pkg/pidfile Hook.Prepare"}
	p := shimProgram(t)
	found := 0
	for at, fn := range p.functions {
		kind, method, _ := strings.Cut(at.function, ".")
		if kind == "NoHook" || !slices.Contains([]string{"Prepare", "Created", "Exited", "Removed"}, method) {
			continue
		}
		if fn.Type.Results.NumFields() > 0 && method == "Exited" {
			continue // that of a process, which is a channel
		}
		found++
		if name := path.Dir(at.path) + " " + at.function; !p.has[fn] && !slices.Contains(makesNothing, name) {
			t.Errorf("%s: %s has no failpoint", at.path, at.function)
		}
	}
	if found < 15 {
		t.Errorf("%d methods of hooks were found, more are known", found)
	}
}

// The files that the delete command reads, and others that tell the state of a container or a pod.
func TestFailpoints_AreAtEveryWriteOfState(t *testing.T) {
	p := shimProgram(t)
	writes := 0
	for at, fn := range p.functions {
		for _, c := range calls(fn.Body) {
			if c.of != "unixfile" || !slices.Contains([]string{"Write", "WriteJSON", "Symlink"}, c.name) {
				continue
			}
			writes++
			if !c.guarded && !p.calledWithFailpoint(at) {
				t.Errorf("%s: %s writes, and neither it nor each that calls it has a failpoint", at.path, at.function)
			}
		}
	}
	if writes < 7 {
		t.Errorf("%d writes were found, more are known", writes)
	}
}

// calledWithFailpoint reports whether a function is the step of a failpoint wherever it is called.
func (p program) calledWithFailpoint(callee step) bool {
	kind, name, isMethod := strings.Cut(callee.function, ".")
	if !isMethod {
		name = kind
	}
	found := false
	for at, fn := range p.functions {
		for _, c := range calls(fn.Body) {
			same := path.Dir(at.path) == path.Dir(callee.path)
			// cleanup.State is the one that is written from another package.
			if c.name != name || !same && (kind != "State" || path.Dir(at.path) != "pkg/task") {
				continue
			}
			if found = true; !c.guarded && !hasFailpoint(fn.Body) {
				return false
			}
		}
	}
	return found
}

// noUndo lists what is joined to an error, has no failpoint and needs none, as "package function called", and why.
var noUndo = map[string]string{
	"pkg/listen withFSIDs Prctl":  "puts back a flag of the process, whatever came of the step",
	"pkg/notify Listen RemoveAll": "the failpoint of its hook comes after it",
	"pkg/pidfile read invalid":    "no step",
	"pkg/unixfile WriteIn Chmod":  "a step",
}

// By custom the error of what undoes a step is joined to that of the step.
func TestFailpoints_AreAtEveryUndo(t *testing.T) {
	p := shimProgram(t)
	needed := map[string]bool{}
	for at, fn := range p.functions {
		for _, c := range calls(fn.Body) {
			if !c.joined || c.guarded || c.of == "fail" || c.of == "fmt" || c.name == "Close" {
				continue
			}
			if slices.ContainsFunc(p.callees(at, c), func(callee *ast.FuncDecl) bool { return p.has[callee] }) {
				continue
			}
			name := path.Dir(at.path) + " " + at.function + " " + c.name
			if needed[name] = true; noUndo[name] == "" {
				t.Errorf("%s: %q undoes something by %s.%s without a failpoint", at.path, name, c.of, c.name)
			}
		}
	}
	for name := range noUndo {
		if !needed[name] {
			t.Errorf("noUndo has %q, which does not occur", name)
		}
	}
}

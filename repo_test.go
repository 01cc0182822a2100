// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package shim_test checks the rules that hold for the whole tree: what CONTRIBUTING.md asks for and a machine can see.
package shim_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module     = "sandbox.internal/shim"
	maxLines   = 400 // a longer file has a second subject; a test file is as long as its subject
	maxMapSize = 280 // lines of ARCHITECTURE.md: a map is read in one sitting
)

// layers lists the packages from the ground up. A package imports only from layers below its own.
var layers = [][]string{
	{
		"pkg/handover", "pkg/idmap", "pkg/internal/hungfs", "pkg/internal/testx", "pkg/osthread",
		"pkg/poll", "pkg/protofield", "pkg/unixfile",
	},
	{"pkg/launcher/native"},
	{"pkg/launcher/seccomp"},
	{"pkg/launcher"},
	{
		"pkg/cgroup", "pkg/ociruntime/initreexec", "pkg/event",
		"pkg/reaper", "pkg/stdio",
	},
	{"pkg/limit"},
	{"pkg/options"},
	{"pkg/idle", "pkg/ociruntime/systemd", "pkg/stats"},
	{"pkg/bootstrap"},
	{"pkg/inspect", "pkg/pod"},
	{"pkg/process"},
	{"pkg/process/processtest", "pkg/settings"},
	{"pkg/cpuset", "pkg/extension"},
	{"pkg/resources"},
	{"pkg/ociruntime/criu", "pkg/ociruntime/translate"},
	{"pkg/ociruntime"},
	{"pkg/cleanup"},
	{"pkg/task"},
	{"pkg/sandbox"},
	{"pkg/group"},
	{"pkg/service"},
	{
		"pkg/extension/hostrootfs", "pkg/extension/initproc", "pkg/extension/listen", "pkg/extension/notify",
		"pkg/extension/pidfile", "pkg/extension/sleep",
	},
	{"cmd/containerd-shim-sandbox-v1"},
}

// file is a Go file of this repository, the integration module's included.
type file struct {
	path string
	text string
	ast  *ast.File
}

func (f file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func goFiles(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file{path: path, text: string(text), ast: parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// pkg is what `go list` tells of a package of the root module.
type pkg struct {
	ImportPath string
	Imports    []string
	GoFiles    []string
}

// name is the path below the module.
func (p pkg) name() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

func goList(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-tags=seccomp", "-json=ImportPath,Imports,GoFiles"}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	var packages []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		packages = append(packages, p)
	}
}

func TestEveryFileNamesItsLicence(t *testing.T) {
	const want = "// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors\n// SPDX-License-Identifier: Apache-2.0\n"
	for _, f := range goFiles(t) {
		if !strings.HasPrefix(f.text, want) {
			t.Errorf("%s does not begin with the two SPDX lines", f.path)
		}
	}
}

func TestEveryPackageHasExactlyOneDoc(t *testing.T) {
	docs := map[string][]string{}
	for _, f := range goFiles(t) {
		if f.test() {
			continue
		}
		dir := filepath.Dir(f.path)
		in := docs[dir]
		if f.ast.Doc.Text() != "" {
			in = append(in, f.path)
		}
		docs[dir] = in // also when the package has none so far
	}
	for dir, in := range docs {
		if len(in) != 1 {
			t.Errorf("%s has %d package docs, in %q, want one", dir, len(in), in)
		}
	}
}

func TestNoFileIsTooLong(t *testing.T) {
	for _, f := range goFiles(t) {
		if lines := strings.Count(f.text, "\n"); lines > maxLines && !f.test() {
			t.Errorf("%s has %d lines, at most %d are allowed: what is its second subject?", f.path, lines, maxLines)
		}
	}
}

func TestNoPackageIsNamedForNothing(t *testing.T) {
	for _, f := range goFiles(t) {
		switch name := strings.TrimSuffix(f.ast.Name.Name, "_test"); name {
		case "util", "utils", "common", "helper", "helpers", "misc", "types":
			t.Errorf("%s: package %s says nothing of what it does", f.path, name)
		}
	}
}

// The clock of a testing/synctest bubble is moved by Sleep; elsewhere a sleep in a test is a guess.
func TestNoTestSleepsOutsideOfABubble(t *testing.T) {
	for _, f := range goFiles(t) {
		if !f.test() {
			continue
		}
		bubble := slices.ContainsFunc(f.ast.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || bubble {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && sel.Sel.Name == "Sleep" {
				t.Errorf("%s sleeps: wait for a condition", f.path)
			}
			return true
		})
	}
}

func TestDependenciesPointDown(t *testing.T) {
	layer := map[string]int{}
	for i, names := range layers {
		for _, name := range names {
			layer[name] = i
		}
	}
	for _, p := range goList(t, "./...") {
		if p.name() == "" {
			continue // this test
		}
		own, ok := layer[p.name()]
		if !ok {
			t.Errorf("%s stands in no layer: add it to layers in this file and to ARCHITECTURE.md", p.name())
			continue
		}
		for _, path := range p.Imports {
			name, ours := strings.CutPrefix(path, module+"/")
			if ours && layer[name] >= own {
				t.Errorf("%s imports %s, which is not below it", p.name(), name)
			}
		}
	}
}

func TestOnlyTheProgramImportsExtensions(t *testing.T) {
	const extensions = module + "/pkg/extension/"
	for _, p := range goList(t, "./...") {
		for _, path := range p.Imports {
			if strings.HasPrefix(path, extensions) && !strings.HasPrefix(p.ImportPath, extensions) && !strings.HasPrefix(p.name(), "cmd/") {
				t.Errorf("%s imports %s", p.name(), path)
			}
		}
	}
}

// docs/decisions/0001-libcontainer-in-process.md says why.
func TestOnlyTheEngineImportsLibcontainer(t *testing.T) {
	for _, p := range goList(t, "./...") {
		if strings.HasPrefix(p.name(), "pkg/ociruntime") || strings.HasPrefix(p.name(), "cmd/") {
			continue
		}
		for _, path := range p.Imports {
			if strings.HasPrefix(path, "github.com/opencontainers/runc/") {
				t.Errorf("%s imports %s", p.name(), path)
			}
		}
	}
}

// The launcher can be used by another program: it has what it needs, and speaks of no library of runc.
func TestLauncherStandsAlone(t *testing.T) {
	own := module + "/pkg/launcher"
	for _, p := range goList(t, "./pkg/launcher/...") {
		for _, path := range p.Imports {
			ofShim := strings.HasPrefix(path, module+"/") && path != own && !strings.HasPrefix(path, own+"/")
			if ofShim || strings.HasPrefix(path, "github.com/opencontainers/") && path != "github.com/opencontainers/runtime-spec/specs-go" {
				t.Errorf("%s imports %s", p.name(), path)
			}
		}
	}
}

func TestProcessKnowsNeitherProtobufNorLibcontainer(t *testing.T) {
	for _, p := range goList(t, "-deps", "./pkg/process") {
		for _, prefix := range []string{
			"github.com/containerd/containerd/", "github.com/containerd/ttrpc", "github.com/gogo/protobuf",
			"github.com/opencontainers/runc/", "google.golang.org/grpc", "google.golang.org/protobuf",
		} {
			if strings.HasPrefix(p.ImportPath, prefix) {
				t.Errorf("pkg/process depends on %s", p.ImportPath)
			}
		}
	}
}

// What the operator's tool links is not the shim's: it is a module of its own, which the shim's does not know.
func TestShimKnowsNothingOfTheTool(t *testing.T) {
	for _, p := range goList(t, "-deps", "./...") {
		for _, prefix := range []string{module + "/cmd/sandboxctl", "github.com/spf13/cobra"} {
			if strings.HasPrefix(p.ImportPath, prefix) {
				t.Errorf("the shim's module depends on %s", p.ImportPath)
			}
		}
	}
}

// Packages of containerd's API that have a gRPC service link all of gRPC, which each start of the program would pay for
// (docs/decisions/0013-messages-of-containerd.md). Codes and status of gRPC are all that ttrpc needs.
func TestProgramDoesNotLinkGRPC(t *testing.T) {
	for _, p := range goList(t, "-deps", "./cmd/containerd-shim-sandbox-v1") {
		if slices.Contains(p.Imports, "google.golang.org/grpc") {
			t.Errorf("%s imports google.golang.org/grpc", p.ImportPath)
		}
	}
}

// ARCHITECTURE.md says why there are these.
func TestOnlyTheseInitialize(t *testing.T) {
	allowed := []string{"pkg/ociruntime/initreexec", "pkg/osthread"}
	for _, f := range goFiles(t) {
		if f.test() || slices.Contains(allowed, filepath.ToSlash(filepath.Dir(f.path))) {
			continue
		}
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function; only %v may", f.path, allowed)
			}
		}
	}
}

func TestArchitectureNamesEveryPackage(t *testing.T) {
	data, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if lines := strings.Count(text, "\n"); lines > maxMapSize {
		t.Errorf("ARCHITECTURE.md has %d lines, at most %d are allowed", lines, maxMapSize)
	}
	for _, p := range goList(t, "./...") {
		if name := p.name(); name != "" && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("ARCHITECTURE.md does not name `%s`", name)
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// target is a fuzz target of a package, whose path is below that of the shim's module.
type target struct {
	importPath, dir, pkg, name string

	instrumented []string // the packages whose coverage guides the engine, as patterns
}

func (t target) String() string { return t.pkg + "." + t.name }

// minimizeTime is for making an input smaller that widened the coverage, or failed. The engine's minute is longer than
// a target has.
const minimizeTime = time.Second

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// shimModule is the path of the shim's module. That of the tool is below it.
const shimModule = "sandbox.internal/shim"

// find lists the targets in the test files of all packages of the shim and of the tool.
func find(ctx context.Context, s settings, wanted *regexp.Regexp) ([]target, error) {
	var all []target
	for _, module := range []string{".", "cmd/sandboxctl"} {
		targets, err := findIn(ctx, s, filepath.Join(s.dir, module), wanted)
		if err != nil {
			return nil, err
		}
		all = append(all, targets...)
	}
	return all, nil
}

func findIn(ctx context.Context, s settings, dir string, wanted *regexp.Regexp) ([]target, error) {
	const fields = "-json=ImportPath,Dir,Imports,TestGoFiles,XTestGoFiles"
	cmd := exec.CommandContext(ctx, "go", "list", "-tags", s.tags, fields, "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	imports := map[string][]string{}
	var targets []target
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir                    string
			Imports, TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			for i, t := range targets {
				targets[i].instrumented = instrumented(t.importPath, imports)
			}
			return targets, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", cmd, err)
		}
		imports[p.ImportPath] = p.Imports
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, m := range declaration.FindAllStringSubmatch(string(text), -1) {
				t := target{
					importPath: p.ImportPath, dir: p.Dir, pkg: strings.TrimPrefix(p.ImportPath, shimModule+"/"), name: m[1],
				}
				if wanted.MatchString(t.String()) {
					targets = append(targets, t)
				}
			}
		}
	}
}

// parsers are the packages that parse for others.
var parsers = []string{
	"encoding/json", "github.com/go-json-experiment/json", "net/url", "github.com/pelletier/go-toml/v2",
	"google.golang.org/protobuf/encoding/protowire", "github.com/opencontainers/runc/libcontainer/specconv",
}

// instrumented are the packages whose coverage guides the engine in the targets of a package: the package, those of
// the module that it imports, and what parses for these. imports are those of all packages of the module. `go test
// -fuzz` instruments all that are linked, most of which no input reaches. The engine reads the counters of all after
// each execution, and would do a tenth as many in the same time.
func instrumented(importPath string, imports map[string][]string) []string {
	all := []string{importPath}
	for _, p := range imports[importPath] {
		if _, ok := imports[p]; ok {
			all = append(all, p)
		}
	}
	for _, parser := range parsers {
		if slices.ContainsFunc(all, func(p string) bool { return slices.Contains(imports[p], parser) }) {
			all = append(all, parser+"/...")
		}
	}
	return all
}

// engineEnv is for the engine and its workers. An input is run in a goroutine of its own, and a worker that has more
// than one processor wakes another thread for each. A small heap stays in the processor's caches. Together this doubles
// the executions.
var engineEnv = []string{"GOMAXPROCS=1", "GOGC=50"}

// compile makes the package's test binary, once for all its targets.
func (s settings) compile(ctx context.Context, t target) (string, error) {
	binary := filepath.Join(s.work, strings.ReplaceAll(t.pkg, "/", "-")+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	args := []string{"test", "-c", "-tags", s.tags}
	for _, pattern := range t.instrumented {
		args = append(args, "-gcflags="+pattern+"=-d=libfuzzer") // as `go test -fuzz` has it
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", binary, t.importPath)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.dir, os.Stderr, os.Stderr // in its module
	return binary, cmd.Run()
}

// fuzz runs a target for its time. The inputs that widened the coverage are kept where `go test -fuzz` keeps them, so
// that the next run goes on from there; one that failed goes to testdata/fuzz of the package.
func (s settings) fuzz(ctx context.Context, t target) (result, error) {
	binary, err := s.compile(ctx, t)
	if err != nil {
		return result{}, err
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return result{}, err
	}
	args := []string{
		"-test.run=^$", "-test.fuzz=^" + t.name + "$", "-test.fuzztime=" + s.each.String(),
		"-test.fuzzminimizetime=" + minimizeTime.String(), "-test.parallel=" + strconv.Itoa(s.parallel),
		"-test.fuzzcachedir=" + filepath.Join(strings.TrimSpace(string(cache)), "fuzz", t.importPath),
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), engineEnv...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // so that it ends its workers
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = t.dir
	output, err := cmd.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	cmd.Stderr = cmd.Stdout // where the engine writes its progress
	fmt.Printf("== %s\n", t)
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	r := result{Runs: 1}
	late := r.readAll(output, os.Stdout)
	err = cmd.Wait()
	if r.Found = err != nil && !late && ctx.Err() == nil; !r.Found {
		err = nil // or interrupted
	}
	return r, err
}

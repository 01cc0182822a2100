// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// test is the compiled tests of one package.
type test struct {
	Package string // its directory, below the repository
	Dir     string // in which they run
	Binary  string
	Run     string // which of them
	Named   bool   // Run was given for this package, so it must match
}

// compile makes the tests of the packages that the patterns match, in the order of the patterns.
func compile(ctx context.Context, s suite, out string, patterns []string) ([]test, error) {
	var tests []test
	for i, pattern := range patterns {
		pattern, regex, named := strings.Cut(pattern, "=")
		if !named {
			regex = s.run
		}
		// The repository's module is above this one.
		module, inside := "..", pattern
		if rest, ok := strings.CutPrefix(path.Clean(pattern), "integration/"); ok {
			module, inside = ".", "./"+rest
		}
		dir := filepath.Join(out, strconv.Itoa(i)) // packages of two modules may have one name
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
		compile := append([]string{"test", "-c"}, s.flags()...)
		if _, err := goCommand(ctx, module, append(compile, "-o", dir+"/", inside)...); err != nil {
			return nil, err
		}
		list, err := goCommand(ctx, module, "list", "-tags", "seccomp", "-f", "{{.Dir}}", inside)
		if err != nil {
			return nil, err
		}
		found, err := compiled(strings.Fields(list), dir)
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			t.Run, t.Named = regex, named
			tests = append(tests, t)
		}
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("packages %q: have no tests", patterns)
	}
	return tests, nil
}

// flags are those of a build. A guest with another root than this machine's may lack its shared libraries.
func (s suite) flags() []string {
	if s.root == "" {
		return []string{"-tags", "seccomp"}
	}
	return []string{"-tags", "seccomp netgo osusergo", "-ldflags", "-extldflags=-static"}
}

// compiled returns the packages, given by their directories, that have tests in dir.
func compiled(packages []string, dir string) ([]test, error) {
	root, err := filepath.Abs("..")
	if err != nil {
		return nil, err
	}
	var tests []test
	for _, packageDir := range packages {
		binary := filepath.Join(dir, filepath.Base(packageDir)+".test")
		if _, err := os.Stat(binary); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, packageDir)
		if err != nil {
			return nil, err
		}
		tests = append(tests, test{Package: name, Dir: packageDir, Binary: binary})
	}
	return tests, nil
}

// goCommand runs the go command in the directory of a module and returns what it printed.
func goCommand(ctx context.Context, module string, arg ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", arg...)
	cmd.Dir = module
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(arg, " "), err)
	}
	return string(text), nil
}

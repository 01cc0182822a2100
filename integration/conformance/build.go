// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	containerd = "github.com/containerd/containerd/v2/"
	suitePkg   = containerd + "integration/client"
	binary     = "client.test" // the suite, in the directory of the tools
)

// build makes, in the directory of the tools, what the suite needs beyond them: itself and the runc whose faults some
// of its tests call for. What is there already stays; the directory is named after the versions.
func build(ctx context.Context, dir string) error {
	for name, args := range map[string][]string{
		binary:    {"test", "-c", "-vet=off"},
		"runc-fp": {"build"},
	} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		pkg := suitePkg
		if name != binary {
			pkg = containerd + "integration/failpoint/cmd/" + name
		}
		fmt.Fprintf(os.Stderr, "building %s\n", path)
		part := fmt.Sprintf("%s.%d.part", path, os.Getpid())
		cmd := exec.CommandContext(ctx, "go",
			append(args, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", part, pkg)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
		if err := os.Rename(part, path); err != nil {
			return err
		}
	}
	return nil
}

// files are those of the suite's tests that reach a shim. The others are about images, content, snapshots and leases.
func files() []string {
	return []string{
		"client_ttrpc_test.go", "client_unix_test.go", "container_checkpoint_test.go",
		"container_idmapped_linux_test.go",
		"container_linux_test.go", "container_test.go", "daemon_config_linux_test.go", "mount_manager_linux_test.go",
		"restart_monitor_test.go",
	}
}

// list returns the names of the tests in these files, sorted.
func list(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", suitePkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	cmd.Stderr = os.Stderr
	dir, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", suitePkg, err)
	}
	var names []string
	for _, name := range files() {
		path := filepath.Join(strings.TrimSpace(string(dir)), name)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				names = append(names, f.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// criu is the program that the checkpoint tests need, or why it is of no use.
type criu struct {
	path string
	err  error
}

// probeCRIU asks criu whether it can work here. One that is older than the kernel often cannot even start: 3.17 ends at
// the vdso of Linux 6.18.
func probeCRIU(ctx context.Context) criu {
	path, err := exec.LookPath("criu")
	if err != nil {
		return criu{err: err}
	}
	if out, err := exec.CommandContext(ctx, path, "check").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return criu{err: fmt.Errorf("%s check: %w: %s", path, err, lines[len(lines)-1])}
	}
	return criu{path: path}
}

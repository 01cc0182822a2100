// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package tools builds the programs that the integration tests, the demo and the benchmark run beside the shim:
// containerd, ctr, containerd-shim-runc-v2 and runc. They are the tool lines of this module's go.mod, so go.mod and
// go.sum pin them and their dependencies. The result stays in a cache directory named after all that went into it.
// Older releases of containerd, for the tests that run under each, are made likewise.
package tools

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// program is one tool: its import path and how it is built.
type program struct {
	pkg  string
	tags string
	cgo  string
}

// programs lists what Build makes. Only runc needs cgo: for libseccomp, and for what it does before Go starts.
func programs() []program {
	const containerd = "github.com/containerd/containerd/v2/cmd/"
	return []program{
		{pkg: containerd + "containerd", cgo: "0"},
		{pkg: containerd + "ctr", cgo: "0"},
		{pkg: containerd + "containerd-shim-runc-v2", cgo: "0"},
		{pkg: "github.com/opencontainers/runc", tags: "seccomp", cgo: "1"},
	}
}

// Build makes the tools that the cache lacks and returns the directory that holds them. The working directory must be
// inside this module. Processes that build at the same time wait for the first. SHIM_CACHE names the cache, which is
// containerd-shim-sandbox-v1 otherwise, in the user's cache directory. SHIM_TOOLS names a directory that has the tools
// already. GOARCH chooses the processor: for another than this machine's, hack/musl.sh runs the caller.
func Build(ctx context.Context) (string, error) {
	if dir := os.Getenv("SHIM_TOOLS"); dir != "" {
		return dir, nil
	}
	dir, err := cacheDir(ctx)
	if err != nil {
		return "", err
	}
	return dir, locked(dir, func() error {
		for _, p := range programs() {
			if err := p.build(ctx, ".", dir); err != nil {
				return err
			}
		}
		return buildPause(ctx, dir)
	})
}

// locked makes dir and does work while no other process does any for the same dir.
func locked(dir string, work func() error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // this unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return work()
}

// build makes p in dir unless it is there, with the go.mod of the directory source. A build that is cut short leaves
// nothing under the final name.
func (p program) build(ctx context.Context, source, dir string) error {
	name := filepath.Join(dir, path.Base(p.pkg))
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fmt.Fprintf(os.Stderr, "building %s\n", name)
	part := name + ".part"
	tags, ldflags := p.tags, "-s -w"
	if p.cgo == "1" && arch() != runtime.GOARCH { // with musl, which that machine may lack
		tags, ldflags = tags+" netgo osusergo", ldflags+" -extldflags=-static"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-tags", tags,
		"-o", part, p.pkg)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+p.cgo, "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.pkg, err, out)
	}
	return os.Rename(part, name)
}

// arch is the processor that programs are built for.
func arch() string { return cmp.Or(os.Getenv("GOARCH"), runtime.GOARCH) }

// Cache is the directory of the cache.
func Cache() (string, error) {
	root := os.Getenv("SHIM_CACHE")
	if root == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("cache directory (set SHIM_CACHE): %w", err)
		}
		root = filepath.Join(user, "containerd-shim-sandbox-v1")
	}
	root, err := filepath.Abs(root)
	return root, errors.Join(err, os.MkdirAll(root, 0o755))
}

// cacheDir is named after the tools' versions for people, and for the cache after those of every module in them and of
// Go.
func cacheDir(ctx context.Context) (string, error) {
	root, err := Cache()
	if err != nil {
		return "", err
	}
	list := []string{"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}"}
	for _, p := range programs() {
		list = append(list, p.pkg)
	}
	modules, err := goOutput(ctx, list...)
	if err != nil {
		return "", err
	}
	goVersion, err := goOutput(ctx, "env", "GOVERSION", "GOARCH")
	if err != nil {
		return "", err
	}
	lines := strings.Split(modules, "\n")
	slices.Sort(lines)
	lines = slices.Compact(lines)
	var name []string
	for _, line := range lines {
		module, version, _ := strings.Cut(line, " ")
		switch module {
		case "github.com/containerd/containerd/v2":
			name = append(name, "containerd-"+strings.TrimPrefix(version, "v"))
		case "github.com/opencontainers/runc":
			name = append(name, "runc-"+strings.TrimPrefix(version, "v"))
		}
	}
	key := sha256.Sum256(fmt.Append(nil, lines, goVersion, programs()))
	return filepath.Join(root, strings.Join(append(name, hex.EncodeToString(key[:4])), "-")), nil
}

func goOutput(ctx context.Context, arg ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", arg...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(arg, " "), err, exit.Stderr)
		}
		return "", fmt.Errorf("go %s: %w", strings.Join(arg, " "), err)
	}
	return string(out), nil
}

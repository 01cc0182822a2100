// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
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
	"strings"
)

// Release is a release of containerd that the tests run the shim under.
type Release struct {
	Name    string // of its series
	Provide func(ctx context.Context) (binary string, err error)
}

// AllReleases reports whether Releases lists each series: four more, whose build takes minutes each.
func AllReleases() bool { return os.Getenv("SHIM_TEST_RELEASES") == "all" }

// Releases lists one release of each series that is tested, the oldest first.
func Releases() []Release {
	list := []Release{
		{"1.6", func(ctx context.Context) (string, error) {
			return cached("containerd-1.6.20", daemon, debian(ctx))
		}},
		{"1.7", module17},
	}
	if AllReleases() {
		list = append(list, Release{"2.0", byVersion("2.0.14")}, Release{"2.1", byVersion("2.1.9")},
			Release{"2.2", byVersion("2.2.9")}, Release{"2.3", byVersion("2.3.7")})
	}
	return append(list, Release{"2.4", func(ctx context.Context) (string, error) {
		dir, err := Build(ctx)
		return filepath.Join(dir, daemon), err
	}})
}

// byVersion builds a release in a module that needs nothing else, whose go.sum Go's checksum database stands for.
func byVersion(version string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		return cached("containerd-"+version, daemon, func(dir string) error {
			p := program{pkg: "github.com/containerd/containerd/v2/cmd/containerd", cgo: "0"}
			if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module containerd\n"), 0o644); err != nil {
				return err
			}
			if err := command(ctx, dir, "go", "get", "-tool", p.pkg+"@v"+version); err != nil {
				return err
			}
			return p.build(ctx, dir, dir)
		})
	}
}

// daemon is the base name of each release's binary.
const daemon = "containerd"

// cached returns the path of a program in a directory of the cache, and has it made there when it is absent.
func cached(name, program string, provide func(dir string) error) (string, error) {
	root, err := Cache()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	path := filepath.Join(dir, program)
	return path, locked(dir, func() error {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		fmt.Fprintf(os.Stderr, "making %s\n", path)
		return provide(dir)
	})
}

// Unpack has hack/debian.sh unpack packages of Debian. The arguments are the script's.
func Unpack(ctx context.Context, arg ...string) error {
	dir, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	if err := command(ctx, dir, filepath.Join(dir, "..", "hack", "debian.sh"), arg...); err != nil {
		return fmt.Errorf("packages of Debian (apt-get, debian-archive-keyring): %w", err)
	}
	return nil
}

// debian keeps the daemon of Debian 12's package.
func debian(ctx context.Context) func(dir string) error {
	return func(dir string) error {
		root := filepath.Join(dir, "root")
		if err := Unpack(ctx, arch(), root, "containerd"); err != nil {
			return err
		}
		err := os.Rename(filepath.Join(root, "usr", "bin", daemon), filepath.Join(dir, daemon))
		return errors.Join(err, os.RemoveAll(root))
	}
}

// module17 builds containerd 1.7. Its module cannot be installed by version, since it has replace lines, and cannot be
// in the go.mod of the tests, whose containerd 2 needs later dependencies. So it is a tool line of a module of its own.
func module17(ctx context.Context) (string, error) {
	// The tests use none of what these tags leave out.
	return ownModule(ctx, "containerd-1.7", program{
		pkg:  "github.com/containerd/containerd/cmd/containerd",
		tags: "no_aufs no_btrfs no_devmapper no_tracing no_zfs", cgo: "0",
	})
}

// ownModule builds p with the go.mod of the folder of this package that is called name.
func ownModule(ctx context.Context, name string, p program) (string, error) {
	dir, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	source := filepath.Join(dir, "tools", name)
	var pins []byte
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(source, file))
		if err != nil {
			return "", err
		}
		pins = append(pins, text...)
	}
	key := sha256.Sum256(fmt.Append(pins, runtime.Version(), arch(), p))
	return cached(name+"-"+hex.EncodeToString(key[:4]), path.Base(p.pkg),
		func(dir string) error { return p.build(ctx, source, dir) })
}

// moduleDir is where this module is, in which the working directory must be.
func moduleDir(ctx context.Context) (string, error) {
	dir, err := goOutput(ctx, "list", "-m", "-f", "{{.Dir}}")
	return strings.TrimSpace(dir), err
}

func command(ctx context.Context, dir, name string, arg ...string) error {
	cmd := exec.CommandContext(ctx, name, arg...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

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
	"path/filepath"
	"strings"
)

// Docker is the programs of a Docker, which only the tests of clients need.
type Docker struct {
	Daemon  string // dockerd
	Version string // of Daemon
	CLI     string // docker, of Debian
	Init    string // what `docker run --init` starts
}

// BuildDocker provides Docker as Build does the other tools. Its daemon is a tool line of a module of its own, whose
// dependencies are others than those of the tests. The module proxy lacks one that the client needs.
func BuildDocker(ctx context.Context) (Docker, error) {
	const module = "github.com/moby/moby/v2" // dockerd itself does not know its version
	daemon, version, err := pinned(ctx, "dockerd", module,
		program{pkg: module + "/cmd/dockerd", tags: "exclude_graphdriver_btrfs", cgo: "0"})
	if err != nil {
		return Docker{}, err
	}
	d, err := DebianDocker(ctx)
	d.Daemon, d.Version = daemon, version
	return d, err
}

// dockerSuite is the release of Debian whose Docker is run.
const dockerSuite = "trixie"

// DebianDocker provides the Docker of a Debian that need not be this machine's, which takes no build.
func DebianDocker(ctx context.Context) (Docker, error) {
	packages := []string{"docker-cli", "docker.io", "libc6", "libcap2", "libsystemd0", "tini"} // two are for libraries
	key := sha256.Sum256([]byte(strings.Join(packages, " ")))
	daemon, err := cached("docker-"+dockerSuite+"-"+arch()+"-"+hex.EncodeToString(key[:4]), "dockerd",
		func(to string) error {
			root := filepath.Join(to, "root")
			if _, err := os.Stat(root); errors.Is(err, os.ErrNotExist) {
				if err := Unpack(ctx, append([]string{"-s", dockerSuite, arch(), root}, packages...)...); err != nil {
					return err
				}
			}
			return bind(ctx, root, filepath.Join(root, "usr", "sbin", "dockerd"), filepath.Join(to, "dockerd"))
		})
	if err != nil {
		return Docker{}, err
	}
	version, err := exec.CommandContext(ctx, daemon, "--version").Output() // "Docker version 26.1.5+dfsg1, build a72d7cd"
	if err != nil {
		return Docker{}, fmt.Errorf("%s --version: %w", daemon, err)
	}
	number, _, _ := strings.Cut(strings.TrimPrefix(string(version), "Docker version "), ",")
	bin := filepath.Join(filepath.Dir(daemon), "root", "usr", "bin")
	return Docker{
		Daemon: daemon, Version: number,
		CLI: filepath.Join(bin, "docker"), Init: filepath.Join(bin, "tini-static"),
	}, nil
}

// bind makes a program to of the program from, which takes its loader and its libraries from root in place of this
// machine's. A loader on the command line would not do: dockerd has /proc/PID/exe run as a hook.
func bind(ctx context.Context, root, from, to string) error {
	loaders, err := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-gnu", "ld-linux-*.so.*"))
	if err != nil || len(loaders) != 1 {
		return fmt.Errorf("loaders below %s: %q, want one: %w", root, loaders, err)
	}
	part := to + ".part"
	// An RPATH is, unlike a RUNPATH, for the libraries of libraries, too.
	err = command(ctx, root, "patchelf", "--set-interpreter", loaders[0], "--force-rpath",
		"--set-rpath", filepath.Dir(loaders[0]), "--output", part, from)
	if err != nil {
		return err
	}
	return os.Rename(part, to)
}

// BuildKit is the programs of a BuildKit.
type BuildKit struct{ Daemon, CLI, Version string }

// BuildBuildKit provides BuildKit as BuildDocker does dockerd.
func BuildBuildKit(ctx context.Context) (BuildKit, error) {
	const module = "github.com/moby/buildkit"
	daemon, version, err := pinned(ctx, "buildkit", module, program{pkg: module + "/cmd/buildkitd", cgo: "0"})
	if err != nil {
		return BuildKit{}, err
	}
	cli, _, err := pinned(ctx, "buildkit", module, program{pkg: module + "/cmd/buildctl", cgo: "0"})
	return BuildKit{Daemon: daemon, CLI: cli, Version: version}, err
}

// BuildNerdctl provides nerdctl likewise, and returns its version. The folder has a stand-in for a module of its tests,
// which the program wants and the module proxy lacks.
func BuildNerdctl(ctx context.Context) (binary, version string, err error) {
	const module = "github.com/containerd/nerdctl/v2"
	return pinned(ctx, "nerdctl", module, program{pkg: module + "/cmd/nerdctl", cgo: "0"})
}

// BuildCrictl provides crictl likewise, and returns its version.
func BuildCrictl(ctx context.Context) (binary, version string, err error) {
	const module = "sigs.k8s.io/cri-tools"
	return pinned(ctx, "crictl", module, program{pkg: module + "/cmd/crictl", cgo: "0"})
}

// pinned builds p with the go.mod of the folder of this package that is called name, and returns the version that it
// has there of a module.
func pinned(ctx context.Context, name, module string, p program) (binary, version string, err error) {
	if binary, err = ownModule(ctx, name, p); err != nil {
		return "", "", err
	}
	dir, err := moduleDir(ctx)
	if err != nil {
		return "", "", err
	}
	version, err = goOutput(ctx, "-C", filepath.Join(dir, "tools", name), "list", "-m", "-f", "{{.Version}}", module)
	return binary, strings.TrimPrefix(strings.TrimSpace(version), "v"), err
}

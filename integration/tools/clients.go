// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Docker is the programs that only `make test-clients` needs.
type Docker struct {
	Daemon  string // dockerd, of the module proxy
	Version string // of Daemon's module: the binary knows none
	CLI     string // docker, of Debian
	Init    string // what `docker run --init` starts
}

// dockerSuite is the release of Debian whose client of Docker is run.
const dockerSuite = "trixie"

// BuildDocker provides Docker as Build does the other tools. Its daemon is a tool line of a module of its own, whose
// dependencies are others than those of the tests. The module proxy lacks one that the client needs.
func BuildDocker(ctx context.Context) (Docker, error) {
	const module = "github.com/moby/moby/v2"
	daemon, err := ownModule(ctx, "dockerd", program{
		pkg: module + "/cmd/dockerd", tags: "exclude_graphdriver_btrfs", cgo: "0",
	})
	if err != nil {
		return Docker{}, err
	}
	dir, err := moduleDir(ctx)
	if err != nil {
		return Docker{}, err
	}
	version, err := goOutput(ctx, "-C", filepath.Join(dir, "tools", "dockerd"), "list", "-m", "-f", "{{.Version}}", module)
	if err != nil {
		return Docker{}, err
	}
	cli, err := cached("docker-"+dockerSuite+"-"+arch(), filepath.Join("root", "usr", "bin", "docker"),
		func(to string) error {
			cmd := exec.CommandContext(ctx, filepath.Join(dir, "..", "hack", "debian.sh"), "-s", dockerSuite, arch(),
				filepath.Join(to, "root"), "docker-cli", "tini")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("docker's client, of Debian (apt-get, debian-archive-keyring): %w\n%s", err, out)
			}
			return nil
		})
	return Docker{
		Daemon: daemon, Version: strings.TrimPrefix(strings.TrimSpace(version), "v"),
		CLI: cli, Init: filepath.Join(filepath.Dir(cli), "tini-static"),
	}, err
}

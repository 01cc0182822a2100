// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// DaemonVersion asks a containerd for its version: "1.6.20" of "1.6.20~ds1", say.
func DaemonVersion(binary string) (string, error) {
	out, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", binary, err)
	}
	fields := strings.Fields(string(out)) // containerd <module> <version> <revision>
	if len(fields) < 3 {
		return "", fmt.Errorf("%s --version: %q: no version in it", binary, out)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), "+")
	version, _, _ = strings.Cut(version, "~")
	return version, nil
}

// UnusedPlugins are plugins of containerd 2, in TOML, that no test needs or that would write outside of Dir.
const UnusedPlugins = `
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
  "io.containerd.mount-handler.v1.erofs", "io.containerd.monitor.container.v1.restart"`

// config leaves out what the tests do not use and what would write outside of Dir.
func (c *Containerd) config() []byte {
	if strings.HasPrefix(c.Version, "1.") {
		return c.config1()
	}
	return fmt.Appendf(nil, `version = 3
root = %q
state = %q
imports = []
disabled_plugins = [%s,
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri", "io.containerd.podsandbox.controller.v1.podsandbox",
]
[grpc]
  address = %q
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = %q
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
`, filepath.Join(c.Dir, "root"), c.State, UnusedPlugins, c.Address, c.Sockets)
}

// config1 is config for containerd 1.x, where shims choose the directory of their sockets.
func (c *Containerd) config1() []byte {
	return fmt.Appendf(nil, `version = 2
root = %q
state = %q
imports = []
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.restart", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = %q
`, filepath.Join(c.Dir, "root"), c.State, c.Address)
}

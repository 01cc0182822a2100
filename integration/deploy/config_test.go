// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"path/filepath"
	"strings"
)

// basic1 is a config.toml for containerd 1.x in the form that Debian ships: it says something of CRI, and no runtime.
func basic1(n *node) string {
	return fmt.Sprintf(`version = 2
%s
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "shim.test/pause:1"
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "%[2]s/cni"
`, n.place(`"io.containerd.internal.v1.opt"`), n.c.Dir)
}

func basic2(n *node) string {
	return fmt.Sprintf(`# a comment
version = 3
%s
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "shim.test/pause:1"
[plugins."io.containerd.cri.v1.runtime".cni]
  conf_dir = "%[2]s/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "%[2]s/s"
`, n.place(`"io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"`), n.c.Dir)
}

// place is the part of a configuration that keeps containerd in the node's directory.
func (n *node) place(disabled string) string {
	return fmt.Sprintf(`root = "%s"
state = "%s"
disabled_plugins = [%s]
[grpc]
  address = "%s"
`, filepath.Join(n.c.Dir, "root"), n.c.State, disabled, n.c.Address)
}

func basic(n *node) string {
	if strings.HasPrefix(n.c.Version, "1.") {
		return basic1(n)
	}
	return basic2(n)
}

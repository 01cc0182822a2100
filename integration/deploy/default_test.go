// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// The runtime of all pods that name none, as docs/kubernetes.md configures it. The tests of integration/cri run their pods
// so, with each series of containerd.
func TestDefaultRuntime_IsNotTakenAway(t *testing.T) {
	for _, series := range []string{"1.6", "1.7", "2.4"} {
		t.Run("containerd "+series, func(t *testing.T) {
			n := newNode(t, release(t, series), withDropIns)
			n.want(0, nil, "install")
			n.makeDefault()
			harness.Must(t, n.restartContainerd())
			n.wantCRI()
			// The handler is the node's default now: without it containerd would come back without CRI.
			before := n.files()
			n.want(3, nil, "uninstall")
			n.wantFiles(before)
			n.wantCRI()
		})
	}
}

// withDropIns is basic with an import of conf.d, as containerd 2.x has by default.
func withDropIns(n *node) string {
	return strings.Replace(basic(n), "version = 3\n", fmt.Sprintf("version = 3\nimports = [%q]\n", n.conf+"/*.toml"), 1)
}

func (n *node) makeDefault() {
	n.Helper()
	for _, text := range blocks(n.T, "toml") {
		first, rest, _ := strings.Cut(text, "\n")
		switch old := strings.HasPrefix(n.c.Version, "1."); {
		case !strings.Contains(text, "default_runtime_name"):
		case !old && strings.HasSuffix(first, "/conf.d/default-runtime.toml"):
			n.write(filepath.Join(n.conf, filepath.Base(first)), text)
			return
		case old && strings.HasSuffix(first, "/config.toml"):
			n.write(n.config, n.read(n.config)+rest)
			return
		}
	}
	n.Fatalf("docs/kubernetes.md does not say how containerd %s gets a default runtime", n.c.Version)
}

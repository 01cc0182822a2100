// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// A user without root builds on a machine that has Go, a C compiler, make and libseccomp, but neither git nor musl nor
// pkg-config nor what builds libseccomp.
func TestSource_BuildsWithoutRootAndTools(t *testing.T) {
	if !all() {
		t.Skip("NOT TESTED: builds without root and tools, which take minutes: make test-packages")
	}
	goroot := strings.TrimSpace(command(t, ".", "go", "env", "GOROOT"))
	modules := strings.TrimSpace(command(t, ".", "go", "env", "GOMODCACHE"))
	g := newGuest(t, "bookworm", goroot, modules)
	if out, err := g.run("command -v git || command -v musl-gcc || command -v pkg-config || command -v autoreconf"); err == nil {
		t.Fatalf("the guest has %s", out)
	}
	clone(t, "../..", filepath.Join(g.share, "source"))
	g.ok("chown -R nobody /share/source")
	out := g.ok(`setpriv --reuid nobody --regid nogroup --clear-groups env -i PATH=/host/0/bin:/usr/bin:/bin HOME=/tmp/home \
		GOMODCACHE=/host/1 GOPROXY=off TMPDIR=/tmp sh -c 'mkdir $HOME && cd /share/source && make build' 2>&1`)
	if !strings.Contains(out, "musl-gcc is absent") {
		t.Errorf("make build printed %q, want that musl is absent", out)
	}
	g.ok("cp /share/source/bin/" + shim + " /usr/local/bin")
	g.want(shim+" -v", "Version:  "+strings.TrimSpace(read(t, "../../VERSION"))+"\n", "seccomp: 2.")
	g.startContainerd()
	g.want("ctr run --rm --runtime "+harness.Ours+" --cgroup /"+g.namespace+"/c0 "+harness.Image+" c0 echo hello", "hello")
}

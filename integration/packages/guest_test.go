// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// setup is run by the first process of a guest: a root of Debian with a layer above it, in which all writing ends.
// $1 is the root, $2 a directory on the host for the layer, $3 what the guest sees as /share.
// Further directories it sees as /host/0 and so on.
const setup = `set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/root"
cd "$2/root"
mkdir -p share upper var/lib/containerd
mount --bind "$3" share
mount --bind "$2/upper" upper
n=0
for dir in "${@:4}"; do
	mkdir -p host/$n
	mount --bind "$dir" host/$n
	n=$((n + 1))
done
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs tmpfs var/lib/containerd
pivot_root . mnt
cd /
umount -l /mnt
echo ready
while read -r _; do :; done
`

// guest is a machine of a user.
type guest struct {
	*testing.T
	share     string // a directory that the guest has as /share
	pid       string // of its first process
	namespace string // of its containers
}

// newGuest starts a guest, which ends with the test.
func newGuest(t *testing.T, suite string, dirs ...string) *guest {
	t.Helper()
	root := debian(t, suite)
	dir := t.TempDir()
	g := &guest{T: t, share: filepath.Join(dir, "share"), namespace: fmt.Sprintf("%s%d", harness.NamespacePrefix, os.Getpid())}
	layer := filepath.Join(dir, "layer")
	for _, d := range []string{g.share, layer} {
		harness.Must(t, os.Mkdir(d, 0o755))
	}
	cmd := exec.Command("unshare", append([]string{
		"--mount", "--pid", "--fork", "--kill-child", "--", "bash", "-c", setup, "guest", root, layer, g.share,
	}, dirs...)...)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	harness.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // the first process ends, and all others with it
		if err := cmd.Wait(); err != nil {
			t.Errorf("the guest ended: %v", err)
		}
		scope := harness.Scope{Namespace: g.namespace, MountsIn: filepath.Join("/run", g.namespace)}
		scope.Check(t)
	})
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(stdout, ready); err != nil {
		t.Fatalf("the guest did not start: %v", err)
	}
	child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	harness.Must(t, err)
	g.pid = strings.TrimSpace(string(child))
	return g
}

// run runs a command of the guest's shell and returns its output, both streams of it.
func (g *guest) run(command string) (string, error) {
	g.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(10*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--target", g.pid, "--mount", "--pid", "--", "/bin/sh", "-c", command)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C",
		"DEBIAN_FRONTEND=noninteractive", "CONTAINERD_SNAPSHOTTER=native", "CONTAINERD_NAMESPACE=" + g.namespace,
		"CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1",
	}
	cmd.WaitDelay = time.Second // a container keeps its output open
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return out.String(), err
}

// ok runs a command that must succeed and returns its output.
func (g *guest) ok(command string) string {
	g.Helper()
	out, err := g.run(command)
	if err != nil {
		g.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// want runs a command that must succeed, and print each of the texts.
func (g *guest) want(command string, texts ...string) {
	g.Helper()
	out := g.ok(command)
	for _, text := range texts {
		if !strings.Contains(out, text) {
			g.Errorf("%s printed\n%s\nwant %q in it", command, out, text)
		}
	}
}

func (g *guest) startContainerd() {
	g.Helper()
	env, err := harness.Require(g.Context())
	harness.Must(g, err)
	image, err := harness.ImageTar(env)
	harness.Must(g, err)
	data, err := io.ReadAll(image)
	harness.Must(g, err)
	harness.Must(g, os.WriteFile(filepath.Join(g.share, "image.tar"), data, 0o644))
	// It returns when the former containerd has gone.
	restart := `#!/bin/sh
pid=$(cat /run/containerd.pid 2>/dev/null) && kill "$pid" && while kill -0 "$pid" 2>/dev/null; do :; done
setsid containerd >>/run/containerd.log 2>&1 </dev/null &
echo $! >/run/containerd.pid
`
	harness.Must(g, os.WriteFile(filepath.Join(g.share, "restart"), []byte(restart), 0o755))
	g.ok("/share/restart")
	harness.Eventually(g, "containerd answers", func() error {
		out, err := g.run("ctr version")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	g.ok("ctr images import /share/image.tar")
}

// debian returns a root that root.sh has made or makes.
func debian(t *testing.T, suite string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./root.sh", suite)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		if os.Getenv("CI") != "" || all() {
			t.Fatalf("a root of Debian %s: %v", suite, err)
		}
		t.Skipf("NOT TESTED: packages on Debian %s: no root of it: %v", suite, err)
	}
	return strings.TrimSpace(string(out))
}

// all reports whether more than a part is tested.
func all() bool { return os.Getenv("SHIM_TEST_PACKAGES") != "" }

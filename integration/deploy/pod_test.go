// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// The installer's pod, as a container of the very containerd that it restarts: with the image's busybox, nsenter into
// the node's mounts, and a kubectl that writes down what it is asked.
func TestPod_InstallsAndUninstalls(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	before, dump := n.files(), n.dump()
	const installed = "label node n1 --overwrite io.containerd.sandbox.v1/installed=true " +
		"io.containerd.sandbox.v1/pauseless=true\n"
	const asked = "get node n1 --output jsonpath={.metadata.labels.io\\.containerd\\.sandbox\\.v1/installed}\n"

	if status, out := n.pod("install"); status != 0 || !strings.Contains(out, "handlers: sandbox sandbox-pauseless") {
		t.Fatalf("pod.sh install: exit status %d:\n%s", status, out)
	}
	n.wantHandlers(dump)
	n.wantRestarts(1)
	n.wantLabels(asked + installing + installed)

	if status, out := n.pod("install"); status != 0 || !strings.Contains(out, "nothing to change") {
		t.Errorf("pod.sh install again: exit status %d:\n%s", status, out)
	}
	n.wantRestarts(0)
	n.wantLabels(asked + installed)

	n.upgrade = "true"
	if status, out := n.pod("install"); status != 0 || !strings.Contains(out, "no sandboxctl beside this script") {
		t.Errorf("pod.sh install with UPGRADE_SHIMS, of an image without sandboxctl: exit status %d:\n%s", status, out)
	}
	n.tool = sandboxctl(t)
	if status, out := n.pod("install"); status != 0 || !strings.Contains(out, "host/sandboxctl --address "+n.c.Address) ||
		!strings.Contains(out, "\nshims: none\n") {
		t.Errorf("pod.sh install with UPGRADE_SHIMS: exit status %d:\n%s", status, out)
	}
	n.wantRestarts(0)
	n.wantLabels(asked + installed)

	if status, out := n.pod("uninstall"); status != 0 {
		t.Errorf("pod.sh uninstall: exit status %d:\n%s", status, out)
	}
	n.wantRestarts(1)
	n.wantLabels("label node n1 --overwrite io.containerd.sandbox.v1/installed=leaving " +
		"io.containerd.sandbox.v1/pauseless-\n" +
		"label node n1 --overwrite io.containerd.sandbox.v1/installed-\n")
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
	if _, err := os.Stat(filepath.Join(n.c.Dir, "host")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left on the node: %v", err)
	}
}

// sandboxctl is the program.
func sandboxctl(t *testing.T) string {
	t.Helper()
	binary, err := harness.Sandboxctl(t.TempDir())
	harness.Must(t, err)
	return binary
}

// installing is what finds the node for the uninstaller, and for no pod of a RuntimeClass.
const installing = "label node n1 --overwrite io.containerd.sandbox.v1/installed=installing\n"

// What fails on the node is not reported to Kubernetes as done, but the uninstaller finds the node. The pod stays: if it
// ended it would be started again, and containerd with it.
func TestPod_ThatFailsIsNotDone(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	before := n.files()
	n.restart = "exit 7"
	status, out := n.pod("install", "--timeout", "2")
	if status != 143 || !strings.Contains(out, "fails with status 7") {
		t.Errorf("pod.sh install: exit status %d:\n%s", status, out)
	}
	if got := n.read(filepath.Join(n.c.Dir, "host.labels")); !strings.HasSuffix(got, "installed}\n"+installing) {
		t.Errorf("kubectl was asked\n%s", got)
	}
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
}

// held is what the pod says when it stays until somebody deletes it.
const held = "delete this pod to try once more"

// pod runs pod.sh on the runc shim, as nodes do that have no other yet, and returns its exit status and its output. It
// deletes a pod that waits for that.
func (n *node) pod(args ...string) (int, string) {
	n.Helper()
	namespace := fmt.Sprintf("%spod-%d", harness.NamespacePrefix, os.Getpid())
	payload, host := filepath.Join(n.c.Dir, "payload"), filepath.Join(n.c.Dir, "host")
	for _, name := range []string{
		"pod.sh", "install.sh", "install-config.sh", "install-containerd.sh",
		"containerd-1.toml", "containerd-2.toml",
	} {
		n.copy(filepath.Join(deployDir, name), filepath.Join(payload, name))
	}
	n.copy(n.binary, filepath.Join(payload, shimName))
	if n.tool != "" {
		n.copy(n.tool, filepath.Join(payload, "sandboxctl"))
	}
	n.script(filepath.Join(payload, "kubectl"), "echo \"$@\" >>"+host+".labels\n[ $1 = label ] || exec cat "+host+".state\n"+
		"case $* in *installed=*) v=${*#*installed=} && echo \"${v%% *}\" ;; esac >"+host+".state\n")
	n.write(host+".labels", "")
	if _, err := os.Stat(host + ".state"); err != nil {
		n.write(host+".state", "")
	}
	n.write(host+".log", "")
	harness.Must(n, os.MkdirAll(host, 0o755))
	bind := func(src, dst, mode string) string {
		return "type=bind,src=" + src + ",dst=" + dst + ",options=rbind:" + mode
	}
	bundles := filepath.Join(n.c.State, "io.containerd.runtime.v2.task", namespace)
	defer harness.Scope{Namespace: namespace, Dirs: []string{bundles}, MountsIn: bundles}.Check(n)
	ctr := n.ctr(namespace)
	run := []string{
		"run", "--detach", "--privileged", "--with-ns", "pid:/proc/self/ns/pid", "--runtime", "io.containerd.runc.v2",
		"--cgroup", "/" + namespace + "/pod", "--log-uri", "file://" + host + ".log",
		"--mount", bind(payload, "/installer", "ro"), "--mount", bind(host, host, "rw"), "--mount",
		bind(host+".labels", host+".labels", "rw"), "--mount", bind(host+".state", host+".state", "rw"),
		"--env", "HOST_DIR=" + host, "--env", "NODE_NAME=n1", "--env", fmt.Sprintf("HOST_PID=%d", os.Getpid()), "--env",
		"RETRY_SECONDS=1", "--env", "UPGRADE_SHIMS=" + n.upgrade,
		"--env", "PATH=/installer:/bin:/usr/bin:/sbin:/usr/sbin", // the container's, and then the node's
		harness.Image, "pod", "/installer/pod.sh",
	}
	run = append(run, args[0], "--bindir", n.bindir, "--config", n.config, "--containerd", n.daemon,
		"--ctr", filepath.Join(n.c.Env.Tools, "ctr"), "--restart", n.restart)
	if out, err := ctr(append(run, args[1:]...)...); err != nil {
		n.Fatalf("ctr run: %v\n%s", err, out)
	}
	deleted := false
	harness.Eventually(n, "the pod ends", func() error {
		if !deleted && strings.Contains(n.read(host+".log"), held) {
			deleted = true
			if out, err := ctr("tasks", "kill", "--signal", "SIGTERM", "pod"); err != nil {
				n.Errorf("ctr tasks kill: %v\n%s", err, out)
			}
		}
		out, err := ctr("tasks", "list")
		if err == nil && !strings.Contains(out, "STOPPED") {
			err = errors.New("it runs")
		}
		if err != nil {
			return fmt.Errorf("%w: %s\n%s", err, out, n.read(host+".log"))
		}
		return nil
	})
	out, err := ctr("tasks", "delete", "pod")
	if err != nil {
		n.Fatalf("ctr tasks delete: %v\n%s", err, out)
	}
	status := 0 // ctr tells another in a warning
	if _, code, found := strings.Cut(out, "exit code "); found {
		if _, err := fmt.Sscan(code, &status); err != nil {
			n.Fatalf("ctr tasks delete: %v\n%s", err, out)
		}
	}
	if out, err := ctr("containers", "delete", "pod"); err != nil {
		n.Fatalf("ctr containers delete: %v\n%s", err, out)
	}
	return status, n.read(host + ".log")
}

func (n *node) wantLabels(want string) {
	n.Helper()
	if got := n.read(filepath.Join(n.c.Dir, "host.labels")); got != want {
		n.Errorf("kubectl was asked\n%swant\n%s", got, want)
	}
}

func (n *node) copy(source, target string) {
	n.Helper()
	in, err := os.Open(source)
	harness.Must(n, err)
	defer func() { _ = in.Close() }() // it was only read
	text, err := io.ReadAll(in)
	harness.Must(n, err)
	n.write(target, string(text))
	harness.Must(n, os.Chmod(target, 0o755))
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// wantUnderSystemd is want on a machine whose systemctl says that systemd runs the node's containerd. A real systemd
// does that in TestSystemd_RunsContainerd.
func (n *node) wantUnderSystemd(status int, texts []string, args ...string) {
	n.Helper()
	fakes := n.TempDir()
	n.script(filepath.Join(fakes, "systemctl"),
		fmt.Sprintf("case $1 in\nshow) echo MainPID=%d ;;\nrestart) exec %s ;;\nesac\n", n.c.Pid(), n.restart))
	restart := n.restart
	n.restart = ""
	cmd := n.command(args...)
	n.restart = restart
	const script = `set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/system
exec "$@"`
	wrapped := exec.CommandContext(n.Context(), "unshare",
		append([]string{"--mount", "--", "sh", "-c", script, "sh"}, cmd.Args...)...)
	wrapped.Env = append(cmd.Env, "PATH="+fakes+":"+os.Getenv("PATH"))
	out, err := wrapped.CombinedOutput()
	if got := wrapped.ProcessState.ExitCode(); got != status {
		n.Fatalf("install.sh %q: exit status %d, want %d: %v\n%s", args, got, status, err, out)
	}
	for _, text := range texts {
		if !strings.Contains(string(out), text) {
			n.Errorf("install.sh %q printed\n%s\nwant %q in it", args, out, text)
		}
	}
}

// startWith starts the node's containerd again, with a PATH that begins with some directories.
func (n *node) startWith(path ...string) {
	n.Helper()
	if err := n.c.Stop(); err != nil {
		n.Fatal(err)
	}
	n.c.Env.Vars = append(n.c.Env.Vars, "PATH="+strings.Join(append(path, "/usr/bin:/bin"), ":"))
	if err := n.c.Start(n.Context()); err != nil {
		n.Fatal(err)
	}
}

// containerd takes the first shim of its PATH.
func TestInstall_ShimBeforeIt(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	early := t.TempDir()
	n.startWith("relative", early, n.bindir)
	n.wantUnderSystemd(0, []string{"would install"}, "install", "--dry-run")
	n.wantUnderSystemd(1, []string{`--containerd "/none": no such program`}, "install", "--containerd", "/none")
	other := filepath.Join(early, shimName)
	n.script(other, "echo Version: 0.0.1\n")
	before := n.files()
	n.wantUnderSystemd(1, []string{"containerd would start " + other + ", which is before " + n.bindir + " in its PATH: " +
		"remove it when no container uses it, or say --bindir " + early + "\n"}, "install")
	n.wantFiles(before)
	n.wantUnderSystemd(0, []string{"would install"}, "install", "--dry-run", "--bindir", early)
	n.wantUnderSystemd(1, []string{"/opt/containerd/bin is not in the PATH of containerd"}, "install", "--bindir",
		"/opt/containerd/bin") // the plugin is disabled
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(n.c.Env.Shim, other); err != nil {
		t.Fatal(err)
	}
	n.wantUnderSystemd(0, []string{"handlers: sandbox"}, "install")
	n.wantUnderSystemd(0, []string{"nothing to change"}, "install")
	n.wantRestarts(1)
}

// A plugin of containerd puts a directory before its PATH. /proc does not show it.
func TestInstall_DirectoryOfThePlugin(t *testing.T) {
	for _, series := range []string{"1.7", "2.4"} {
		t.Run("containerd "+series, func(t *testing.T) {
			opt := t.TempDir()
			n := newNode(t, release(t, series), func(n *node) string {
				text := strings.Replace(basic(n), `"io.containerd.internal.v1.opt"`, `"io.containerd.internal.v1.none"`, 1)
				return text + "\n[plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"" + opt + "\"\n"
			})
			n.startWith()
			n.bindir = filepath.Join(opt, "bin")
			n.wantUnderSystemd(0, []string{"handlers: sandbox"}, "install")
			n.wantCRI()
			n.wantUnderSystemd(0, []string{"removed"}, "uninstall")
		})
	}
}

// The command line says more than the configuration.
func TestInstall_AddressOnTheCommandLine(t *testing.T) {
	harness.OursOnly(t, "to be installed by deploy/install.sh")
	real := release(t, "2.4")
	n := newNode(t, real, basic)
	if err := n.c.Stop(); err != nil {
		t.Fatal(err)
	}
	n.c.Address = filepath.Join(n.c.Dir, "other.sock")
	n.c.Env.Daemon = filepath.Join(n.c.Dir, "wrapper")
	n.script(n.c.Env.Daemon, "exec "+real+" \"$@\" --address "+n.c.Address+"\n")
	n.startWith(n.bindir)
	before := n.files()
	n.wantUnderSystemd(0, []string{"answers on " + n.c.Address}, "install")
	n.wantUnderSystemd(0, []string{"removed"}, "uninstall")
	_ = os.Remove(n.bindir)
	n.wantFiles(before)

	if err := syscall.Kill(n.c.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("containerd, pid %d, does not answer on %s", n.c.Pid(), n.c.Address)
	n.wantUnderSystemd(1, []string{said}, "install")
	if err := syscall.Kill(n.c.Pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	n.wantFiles(before)
}

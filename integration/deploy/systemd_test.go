// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

const unit = "/run/systemd/system/containerd.service"

// On a machine with systemd the unit "containerd" is restarted, and looked at before.
func TestSystemd_RunsContainerd(t *testing.T) {
	for _, name := range []string{"/run/systemd/system", "/run/guest"} { // the machine's own unit is not touched
		if _, err := os.Stat(name); err != nil {
			if required := strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","); slices.Contains(required, "systemd") &&
				slices.Contains(required, "guest") {
				t.Fatal(err)
			}
			t.Skip("NOT TESTED: a virtual machine with systemd (make test-systemd PKGS=./integration/deploy RUN=Systemd)")
		}
	}
	env, err := harness.Require(t.Context())
	harness.Must(t, err)
	n := newNode(t, env.Daemon, basic)
	harness.Must(t, n.c.Stop())
	fault := filepath.Join(n.c.Dir, "fault") // with this file the unit does not start with the new configuration
	n.write(unit, fmt.Sprintf(`[Service]
Type=notify
Environment=PATH=%s:%s:/usr/bin:/bin
ExecStartPre=/bin/sh -c "! test -e %s || ! grep -q %s %s"
ExecStart=%s --config %s
KillMode=process
`, n.bindir, env.Tools, fault, shimName, n.config, env.Daemon, n.config))
	t.Cleanup(func() {
		n.systemctl("stop", "containerd")
		_ = os.Remove(unit)
		n.systemctl("daemon-reload")
	})
	n.systemctl("daemon-reload")
	n.systemctl("start", "containerd")
	before, dump, pid := n.files(), n.dump(), n.systemctl("show", "--property", "MainPID", "containerd")

	n.restart = ""
	n.want(1, []string{"reads " + n.config + ": say --config " + n.config}, "install", "--config",
		"/etc/containerd/config.toml")
	n.want(1, []string{"--bindir /opt/none is not in the PATH of containerd"}, "install", "--bindir", "/opt/none")
	// Another containerd is in PATH than the one that runs.
	others := t.TempDir()
	other := filepath.Join(others, "containerd")
	n.script(other, "echo containerd github.com/containerd/containerd v1.7.0 none\n")
	n.want(1, []string{"is " + env.Daemon + ", of another version than --containerd " + other}, "install", "--containerd", other)
	n.daemon = ""
	t.Setenv("PATH", others+":"+os.Getenv("PATH"))
	n.want(0, []string{"would install"}, "install", "--dry-run")
	n.daemon = env.Daemon
	n.wantFiles(before)

	n.write(fault, "")
	n.want(3, []string{"\"systemctl restart containerd\" fails", "answers with its former configuration"}, "install")
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
	harness.Must(t, os.Remove(fault))

	n.want(0, []string{"restarting containerd: systemctl restart containerd", "handlers: sandbox"}, "install")
	n.wantHandlers(dump)
	n.wantCRI()
	installed := n.systemctl("show", "--property", "MainPID", "containerd")
	if installed == pid {
		t.Errorf("containerd was not restarted: %s", pid)
	}
	n.want(0, []string{"nothing to change"}, "install")
	if got := n.systemctl("show", "--property", "MainPID", "containerd"); got != installed {
		t.Errorf("containerd was restarted without need: %s, then %s", installed, got)
	}
	n.want(0, nil, "uninstall")
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
}

func (n *node) systemctl(args ...string) string {
	n.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		n.Errorf("systemctl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// What a campaign with UNIFIED=systemd runs in.
func TestWithSystemd_RunsACommandAndLeavesNothing(t *testing.T) {
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil || harness.CgroupMode() == "v1" {
		harness.Lacking(t, "systemd-here", "/lib/systemd/systemd and cgroup v2")
	}
	before := namespaceCgroups(t)
	const script = `cat /proc/1/comm && systemctl is-active command.service && echo "$WORD" && cat /sys/fs/cgroup/cgroup.type; exit 7`
	cmd := exec.Command("../../hack/with-systemd.sh", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "WORD=two words")
	out, err := cmd.Output()
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 7 {
		t.Errorf("status of the command: %v, want 7", err)
	}
	// The root of a hierarchy has no type, unless it is that of a namespace.
	if want := "systemd\nactive\ntwo words\ndomain\n"; string(out) != want {
		t.Errorf("output %q, want %q", out, want)
	}
	if after := namespaceCgroups(t); !slices.Equal(before, after) {
		t.Errorf("cgroups %q, before %q", after, before)
	}
}

func namespaceCgroups(t *testing.T) []string {
	t.Helper()
	roots, err := harness.CgroupRoots()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, root := range roots {
		names, err := filepath.Glob(filepath.Join(root, harness.NamespacePrefix+"systemd-*"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, names...)
	}
	return all
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// newUpgradable is a test on a containerd of its own, with a shim that can be replaced.
func newUpgradable(t *testing.T) (*env, *harness.Installed) {
	t.Helper()
	harness.OursOnly(t, "shims that become their successors in place")
	programs, installed := harness.Install(t, shared.Env)
	return newPatientWith(t, programs, withCRI(harness.Ours, "")), installed
}

// wantOutdated checks which containers have a shim that does not run the installed program, by ps.
func (e *env) wantOutdated(when string, want ...string) {
	e.Helper()
	pods, _ := e.ps()
	var got []string
	for _, p := range pods {
		if p.Shim.Outdated {
			got = append(got, p.ID)
		}
	}
	if !slices.Equal(got, want) {
		e.Errorf("%s, ps shows as outdated %q, want %q", when, got, want)
	}
	if table := e.ctl("ps"); strings.Contains(table, "* ") != (len(want) > 0) {
		e.Errorf("%s, the table of ps is\n%swant marks: %t", when, table, len(want) > 0)
	}
}

// wantText checks what sandboxctl prints.
func (e *env) wantText(args, got string, want ...string) {
	e.Helper()
	for _, text := range want {
		if !strings.Contains(got, text) {
			e.Errorf("sandboxctl %s printed\n%swant %q in it", args, got, text)
		}
	}
}

func TestUpgrade_ShimsAfterARelease(t *testing.T) {
	e, installed := newUpgradable(t)
	together := oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": "together"})
	a := e.run("a", harness.Ours, []oci.SpecOpts{together})
	e.run("b", harness.Ours, []oci.SpecOpts{together})
	web := e.run("web", harness.Ours, nil)
	e.run("old", runc, nil)
	e.container("no-task", harness.Ours, nil)
	shared, single := e.shim("a"), e.shim("web")

	e.wantOutdated("before a release")
	e.wantText("upgrade", e.ctl("upgrade"), "  current   ", "\nshims: 2 current\n")
	e.want(e.examine(-1), "shim-upgrade", "ok", "all that run")

	installed.Release(t)
	e.wantOutdated("after a release", "together", "web")
	e.want(e.examine(-1), "shim-upgrade", "warning", fmt.Sprint("a in namespace ", e.namespace, ", pid ", shared))
	out := e.ctl("upgrade", "--dry-run")
	e.wantText("upgrade --dry-run", out, e.namespace+"/together  ", "  ready     ", "\nshims: 2 ready\n")
	e.wantOutdated("after a dry run", "together", "web")

	out = e.ctl("upgrade", "we")
	e.wantText("upgrade we", out, fmt.Sprintf("%-7d  upgraded  %s/web  ", single, e.namespace), " -> ", "shims: 1 upgraded\n")
	e.wantOutdated("after the upgrade of one", "together")
	out = e.ctl("upgrade")
	e.wantText("upgrade", out, "shims: 1 upgraded, 1 current\n")
	e.wantOutdated("after the upgrade of all")
	for id, want := range map[string]int{"a": shared, "web": single} {
		if got := e.shim(id); got != want {
			t.Errorf("the shim of %s is process %d, and was %d", id, got, want)
		}
	}
	e.exec(a, "e1", true, "true")
	e.exec(web, "e1", true, "true")
	e.want(e.examine(-1), "shim-upgrade", "ok", "all that run")

	installed.Release(t)
	all := e.command()
	all.Args = []string{binary, "--address", e.Address, "--state", e.State, "upgrade", "--all", "--jobs", "1"}
	if out, err := all.Output(); err != nil || !strings.HasSuffix(string(out), "\nshims: 2 upgraded\n") {
		t.Errorf("upgrade --all: %v\n%s", err, out)
	}
	e.wantOutdated("after the upgrade of all")
}

func TestUpgrade_SaysWhatIsInTheWay(t *testing.T) {
	e, installed := newUpgradable(t)
	for _, id := range []string{"c1", "c2", "c3"} {
		e.run(id, harness.Ours, nil)
	}
	e.run("old", runc, nil)
	installed.Bad(t, "refuses")
	cmd := e.command("upgrade", "--stop-after", "2", "--jobs", "1")
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("upgrade to a program that refuses: %v, want exit status 1", err)
	}
	e.wantText("upgrade --stop-after 2", string(out), "refuses: exit status 1: no such thing", "shims: 2 failed, 1 not asked\n")
	e.must(os.Remove(installed.Path))
	e.wantOutdated("without an installed program")
	installed.Restore(t)
	e.wantText("upgrade", e.ctl("upgrade"), "shims: 3 current\n")

	e.wantText("upgrade old", e.refused("upgrade", "old"), "old: no shim of io.containerd.sandbox.v1 runs it")
	e.wantText("upgrade none", e.refused("upgrade", "none"), `"none": no container`)
	e.wantText("upgrade --all c1", e.refused("upgrade", "--all", "c1"), "needs ids of containers, --namespace, or --all without these")
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/integration/harness"
)

const (
	shim  = "containerd-shim-sandbox-v1"
	tool  = "sandboxctl"
	newer = "0.99.0"
)

// format is how a package manager is told what to do with $package. What is not there runs the scripts as the format's own
// program does, where Debian has no such program.
type format struct {
	name                             string
	by                               string // which is not Debian's, and which the guest gets as /share/apk; "": Debian's
	file                             string // of a version, to be formatted
	install, upgrade, remove, forget string
}

var formats = []format{
	{
		name: "deb", file: shim + "_%s-1_amd64.deb", install: "dpkg --install $package", upgrade: "dpkg --install $package",
		remove: "dpkg --remove " + shim, forget: "dpkg --purge " + shim,
	},
	{
		// Debian's rpm wants to be told that it is meant.
		name: "rpm", file: shim + "-%s-1.x86_64.rpm", install: "rpm --force-debian --nodeps --install $package",
		upgrade: "rpm --force-debian --nodeps --upgrade $package", remove: "rpm --force-debian --nodeps --erase " + shim,
		forget: "true",
	},
	{
		// apk-tools runs .post-install of a first installation, and .pre-deinstall, with the version as their argument, and
		// .post-upgrade with both versions.
		name: "apk", file: shim + "_%s-r1_x86_64.apk",
		install: "mkdir -p /apk && tar -xzf $package -C /apk 2>/dev/null && cp -a /apk/usr / && busybox sh /apk/.post-install 0.1.0-r1",
		upgrade: "rm -rf /apk && mkdir -p /apk && tar -xzf $package -C /apk 2>/dev/null && cp -a --remove-destination /apk/usr / && busybox sh /apk/.post-upgrade 0.99.0-r1 0.1.0-r1",
		remove:  "busybox sh /apk/.pre-deinstall 0.1.0-r1; (cd /apk && find usr -type f) | sed s,^,/, | xargs rm && rm -r /apk /usr/share/" + shim + " /usr/share/doc/" + shim,
		forget:  "true",
	},
	{
		name: "apk", file: shim + "_%s-r1_x86_64.apk", by: "apk-tools",
		install: "/share/apk add --initdb --allow-untrusted --no-network $package",
		upgrade: "/share/apk add --allow-untrusted --no-network $package",
		remove:  "/share/apk del --no-network " + shim, forget: "true",
	},
}

// apk is a static one, of which Debian has no package; "": there is none.
func apk() string { return os.Getenv("SHIM_APK") }

// pack makes packages of the binary that is tested, of this version and of a newer one, and returns where they are. The
// newer one has another binary.
func pack(t *testing.T, format string) (dir, version string) {
	t.Helper()
	harness.OursOnly(t, "to be in a package")
	env, err := harness.Require(t.Context())
	harness.Must(t, err)
	dir = t.TempDir()
	text, err := os.ReadFile("../../VERSION")
	harness.Must(t, err)
	data, err := os.ReadFile(env.Shim)
	harness.Must(t, err)
	binaries, newBinaries := t.TempDir(), t.TempDir()
	command(t, "../../cmd/sandboxctl", "env", "CGO_ENABLED=0", "go", "build", "-o", filepath.Join(binaries, tool), ".")
	command(t, ".", "cp", filepath.Join(binaries, tool), newBinaries)
	for to, content := range map[string][]byte{
		filepath.Join(binaries, shim): data, filepath.Join(newBinaries, shim): append(data, "newer"...), // an ELF file may have a tail
	} {
		harness.Must(t, os.WriteFile(to, content, 0o755))
	}
	root, err := filepath.Abs("../..")
	harness.Must(t, err)
	tool := filepath.Join(t.TempDir(), "release")
	command(t, "../../hack/release", "go", "build", "-o", tool, ".")
	for _, arg := range [][]string{{"amd64=" + binaries}, {"-version", newer, "amd64=" + newBinaries}} {
		command(t, root, tool, append([]string{"-out", dir, "-formats", format}, arg...)...)
	}
	return dir, strings.TrimSpace(string(text))
}

// command runs a program of the host that must succeed, and returns what it printed.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", time.Now().Unix()), "GOFLAGS=-buildvcs=false")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func TestPackages_Install_Upgrade_Remove(t *testing.T) {
	for _, f := range formats {
		if f.name != "deb" && !all() {
			continue
		}
		for _, suite := range []string{"bookworm", "trixie"} {
			if suite != "bookworm" && (f.name != "deb" || !all()) {
				continue
			}
			name := f.name + " on " + suite
			if f.by != "" {
				name = f.name + " by " + f.by + " on " + suite
			}
			if f.by != "" && apk() == "" {
				t.Logf("NOT TESTED: %s: SHIM_APK names a static apk", name)
				continue
			}
			t.Run(name, func(t *testing.T) { testLife(t, f, suite) })
		}
	}
	if !all() {
		t.Log("NOT TESTED: packages on Debian 13, .rpm and .apk, releases, builds without tools: make test-packages")
	}
}

// testLife is the life of a package on a machine on which containerd runs all the time.
func testLife(t *testing.T, f format, suite string) {
	t.Helper()
	dir, version := pack(t, f.name)
	g := newGuest(t, suite)
	command(t, dir, "cp", "-r", dir+"/.", g.share)
	if f.by != "" {
		command(t, ".", "cp", apk(), filepath.Join(g.share, "apk"))
	}
	do := func(what, version string) string {
		return "package=/share/" + fmt.Sprintf(f.file, version) + "; " + what
	}
	g.startContainerd()
	before := g.machine()

	g.want(do(f.install, version), "without a restart", "/usr/share/"+shim+"/install.sh install --config-only")
	g.want(shim+" -v", "Version:  "+version)
	g.want("sandboxctl --version && sandboxctl completion bash | head -1", "sandboxctl version", "bash completion")
	g.ok("test -s /usr/share/bash-completion/completions/sandboxctl -a -s /usr/share/fish/vendor_completions.d/sandboxctl.fish")
	g.ok("test -s /usr/share/zsh/vendor-completions/_sandboxctl -o -s /usr/share/zsh/site-functions/_sandboxctl")
	g.want("grep -c . /usr/share/doc/" + shim + "/copyright /usr/share/doc/" + shim + "/README.md")
	g.wantMachine("the installation", before)
	g.testContainers(func() {
		out := g.ok(do(f.upgrade, newer))
		if strings.Contains(out, "install.sh") || !strings.Contains(out, "\n    sandboxctl upgrade --all\n") {
			t.Errorf("an upgrade says\n%s\nwant the command for running shims, and not what an installation said", out)
		}
		g.ok("tail -c 5 /usr/bin/" + shim + " | grep newer")
		g.wantMachine("the upgrade", before)
	}, func() {
		out, err := g.run(do(f.remove, newer))
		said, refuses := "Remove them first", f.name != "apk" // which goes on whatever a script says
		if !refuses {
			said = "removed all the same"
		}
		if (err != nil) != refuses || !strings.Contains(out, "c1 in namespace "+g.namespace) || !strings.Contains(out, said) {
			t.Errorf("the removal while a container runs: %v\n%s\nwant that it names the container, and is refused: %t", err, out, refuses)
		}
		if !refuses {
			g.ok("! command -v " + shim)
			g.ok(do(f.install, newer))
		}
		g.ok(shim + " -v")
		g.wantMachine("the removal while a container runs", before)
	})

	// The one command, and the way back.
	g.want("/usr/share/"+shim+"/install.sh install --config-only --restart /share/restart", "handlers: sandbox")
	configured := g.machine()
	if f.name == "deb" { // others would do the same
		g.want(do(f.remove, newer), "still has the handlers of the runtime")
		g.wantMachine("the removal", configured)
		g.ok(do(f.install, newer))
	}
	g.ok("/usr/share/" + shim + "/install.sh uninstall --config-only --restart /share/restart")
	before = g.machine()
	if out := g.ok(do(f.remove, newer)); strings.Contains(out, "still has") {
		t.Errorf("the removal warns of handlers that are gone:\n%s", out)
	}
	g.ok(do(f.forget, newer))
	g.wantMachine("the removal", before)
	if left := g.ok("find /upper/usr /upper/etc '(' -name '*" + shim + "*' -o -name '*" + tool + "*' ')' ! -type c"); left != "" {
		t.Errorf("the removal leaves %s", left)
	}
}

// machine is what no package may change: containerd, by its process, and its configuration.
func (g *guest) machine() string {
	g.Helper()
	return g.ok("cat /run/containerd.pid; kill -0 $(cat /run/containerd.pid); find /etc/containerd -type f -exec sha256sum {} +")
}

func (g *guest) wantMachine(what, before string) {
	g.Helper()
	if diff := cmp.Diff(before, g.machine()); diff != "" {
		g.Errorf("%s changed containerd or its configuration (-before +now):\n%s", what, diff)
	}
}

// testContainers upgrades the package under a running container, and tries to remove it.
func (g *guest) testContainers(upgrade, remove func()) {
	g.Helper()
	run := "ctr run %s --runtime " + harness.Ours + " --cgroup /" + g.namespace + "/%[2]s " + harness.Image + " %[2]s "
	g.want(fmt.Sprintf(run, "--rm", "c0")+"echo hello", "hello")
	g.ok(fmt.Sprintf(run, "--detach", "c1") + "sleep 1000 >/dev/null 2>&1")
	g.want("ctr tasks exec --exec-id e1 c1 echo here", "here")
	upgrade()
	g.want("ctr tasks exec --exec-id e2 c1 echo still here", "still here")
	g.want(fmt.Sprintf(run, "--rm", "c2")+"echo by the new one", "by the new one")
	remove()
	g.want("ctr tasks exec --exec-id e3 c1 echo still here", "still here")
	g.ok("ctr tasks kill --signal KILL c1")
	harness.Eventually(g, "the container ends", func() error {
		if out := g.ok("ctr tasks list"); !strings.Contains(out, "STOPPED") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	g.want("ctr tasks delete c1 2>&1; ctr containers delete c1 && ctr containers list -q | wc -l", "0")
	harness.Eventually(g, "the shim ends", func() error {
		if shims := harness.Shims(g.namespace, ""); len(shims) > 0 {
			return fmt.Errorf("%v", shims)
		}
		return nil
	})
}

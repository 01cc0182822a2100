// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// The life of an installation, on each series of containerd: a first install, a second, containers, an upgrade under
// them, and the way back.
func TestInstall_UpgradeUninstall(t *testing.T) {
	for _, series := range []string{"1.6", "1.7", "2.4"} {
		t.Run("containerd "+series, func(t *testing.T) {
			n := newNode(t, release(t, series), basic)
			before, dump := n.files(), n.dump()

			n.want(0, []string{"the handlers sandbox"}, "install", "--dry-run")
			n.wantFiles(before)
			n.want(0, []string{"handlers: sandbox"}, "install")
			n.wantRestarts(1)
			n.wantHandlers(dump)
			n.wantCRI()

			installed := n.files()
			n.want(0, []string{"nothing to change"}, "install")
			n.wantRestarts(0)
			n.wantFiles(installed)

			n.testContainers()

			n.want(0, []string{"removed"}, "uninstall")
			n.wantRestarts(1)
			delete(before, n.bindir)
			delete(installed, n.bindir)
			if err := os.Remove(n.bindir); err != nil { // that it is empty is what matters
				t.Error(err)
			}
			n.wantFiles(before)
			n.want(0, nil, "uninstall")
			n.wantRestarts(0)
		})
	}
}

// testContainers runs containers on an installation, upgrades it under one, and sees that it cannot be taken away from
// it.
func (n *node) testContainers(options ...string) {
	n.Helper()
	namespace := fmt.Sprintf("%s%d", harness.NamespacePrefix, os.Getpid())
	bundles := filepath.Join(n.c.State, "io.containerd.runtime.v2.task", namespace)
	scope := harness.Scope{Namespace: namespace, Dirs: []string{n.c.Sockets, bundles}, MountsIn: bundles}
	defer scope.Check(n)
	ctr := n.ctr(namespace)
	ok := func(want string, args ...string) {
		n.Helper()
		out, err := ctr(args...)
		if err != nil || !strings.Contains(out, want) {
			n.Fatalf("ctr %q: %v: %q, want %q in it", args, err, out, want)
		}
	}
	runtime := []string{"--cgroup", "/" + namespace + "/c1", "--runtime", harness.Ours, harness.Image, "c1"}
	ok("hello", append(append([]string{"run", "--rm"}, runtime...), "echo", "hello")...)
	ok("", append(append([]string{"run", "--detach"}, runtime...), "sleep", "1000")...)

	former := n.binary
	n.binary = filepath.Join(n.c.Dir, shimName)
	if err := os.WriteFile(n.binary, []byte(n.read(former)+"newer"), 0o755); err != nil { // an ELF file may have a tail
		n.Fatal(err)
	}
	n.want(0, []string{n.c.Env.Shim + ": "}, append([]string{"install"}, options...)...)
	n.wantRestarts(0)
	if !strings.HasSuffix(n.read(n.c.Env.Shim), "newer") {
		n.Error("the shim was not replaced")
	}
	ok("still here", "tasks", "exec", "--exec-id", "e1", "c1", "echo", "still here")

	installed := n.files()
	n.want(1, []string{"container c1 in namespace " + namespace, "shim, pid ", "remove them first"},
		append([]string{"uninstall"}, options...)...)
	n.wantFiles(installed)
	out, err := exec.CommandContext(n.Context(), "sh", preremove, "remove").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "c1 in namespace "+namespace) {
		n.Errorf("the removal of a package under a container: %v\n%s", err, out)
	}
	ok("", "tasks", "delete", "--force", "c1")
	ok("", "containers", "delete", "c1")
	harness.Eventually(n, "the shim ends", func() error {
		if shims := harness.Shims(namespace, ""); len(shims) > 0 {
			return fmt.Errorf("%v", shims)
		}
		return nil
	})
}

// Running shims become the installed one only if that is asked for.
func TestInstall_UpgradesRunningShimsIfAsked(t *testing.T) {
	for _, series := range []string{"1.7", "2.4"} {
		t.Run("containerd "+series, func(t *testing.T) {
			n := newNode(t, release(t, series), basic)
			t.Setenv("PATH", filepath.Dir(sandboxctl(t))+":"+os.Getenv("PATH"))
			n.want(0, nil, "install")
			namespace := fmt.Sprintf("%s%d", harness.NamespacePrefix, os.Getpid())
			bundles := filepath.Join(n.c.State, "io.containerd.runtime.v2.task", namespace)
			defer (harness.Scope{Namespace: namespace, Dirs: []string{n.c.Sockets, bundles}, MountsIn: bundles}).Check(n)
			ctr := n.ctr(namespace)
			ok := func(args ...string) {
				t.Helper()
				if out, err := ctr(args...); err != nil {
					t.Fatalf("ctr %q: %v: %s", args, err, out)
				}
			}
			ok("run", "--detach", "--cgroup", "/"+namespace+"/c1", "--runtime", harness.Ours, harness.Image, "c1", "sleep", "1000")
			former := n.binary
			n.binary = filepath.Join(n.c.Dir, shimName)
			harness.Must(t, os.WriteFile(n.binary, []byte(n.read(former)+"newer"), 0o755)) // an ELF file may have a tail
			wantNew := func(want bool) {
				t.Helper()
				exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", harness.Shims(namespace, "c1")[0].Pid))
				harness.Must(t, err)
				installed, err := os.Stat(n.c.Env.Shim)
				harness.Must(t, err)
				if os.SameFile(exe, installed) != want {
					t.Errorf("the shim runs the installed program: %t, want %t", !want, want)
				}
			}
			n.upgrade = "yes"
			n.want(2, []string{`UPGRADE_SHIMS="yes": want true or false`}, "install")
			n.upgrade = ""
			n.want(0, []string{n.c.Env.Shim + ": "}, "install")
			wantNew(false)
			n.upgrade = "true"
			n.want(0, []string{"would install"}, "install", "--dry-run")
			wantNew(false)
			n.want(0, []string{"is ", " already", "running shims: ", namespace + "/c1", "\nshims: 1 upgraded\n"}, "install")
			wantNew(true)
			n.wantRestarts(1) // of the first installation
			ok("tasks", "exec", "--exec-id", "e1", "c1", "true")
			ok("tasks", "delete", "--force", "c1")
			ok("containers", "delete", "c1")
			harness.Eventually(n, "the shim ends", func() error {
				if shims := harness.Shims(namespace, ""); len(shims) > 0 {
					return fmt.Errorf("%v", shims)
				}
				return nil
			})
			n.want(0, []string{"removed"}, "uninstall")
		})
	}
}

func (n *node) wantFiles(want map[string]string) {
	n.Helper()
	if diff := cmp.Diff(want, n.files()); diff != "" {
		n.Errorf("files (-want +got):\n%.4000s", diff)
	}
}

// wantHandlers checks that nothing is different from the dump before but the runtime's handlers.
func (n *node) wantHandlers(before string) {
	n.Helper()
	handlers := []string{"sandbox"}
	if strings.HasPrefix(n.c.Version, "2.") {
		handlers = append(handlers, "sandbox-pauseless")
	}
	got := settings(n.dump())
	for _, h := range handlers {
		if got[runtimesTable(n.c.Version)+h+" runtime_type"] != harness.Ours {
			n.Errorf("no handler %s in the configuration", h)
		}
	}
	for key := range got {
		if strings.HasPrefix(key, runtimesTable(n.c.Version)+"sandbox") {
			delete(got, key)
		}
	}
	if diff := cmp.Diff(settings(before), got); diff != "" {
		n.Errorf("configuration (-before +now):\n%s", diff)
	}
}

// wantCRI asks CRI, which answers kubelet.
func (n *node) wantCRI() {
	n.Helper()
	n.wantOffered("sandbox", "sandbox-pauseless")
}

// wantOffered checks that CRI offers the handlers. CRI of containerd 1.x shows no list: there it is "sandbox" alone.
func (n *node) wantOffered(handlers ...string) {
	n.Helper()
	answer, err := runtime.NewRuntimeServiceClient(n.client().Conn().(grpc.ClientConnInterface)).Status(n.Context(),
		&runtime.StatusRequest{Verbose: true})
	harness.Must(n, err)
	config := answer.GetInfo()["config"]
	if !strings.Contains(config, `"sandbox":{"runtimeType":"io.containerd.sandbox.v1"`) {
		n.Errorf("CRI's configuration has no handler \"sandbox\": %s", config)
	}
	if strings.HasPrefix(n.c.Version, "1.") {
		return
	}
	for _, want := range handlers {
		found := false
		for _, h := range answer.GetRuntimeHandlers() {
			found = found || h.GetName() == want
		}
		if !found {
			n.Errorf("CRI's handlers are %v, want %q among them", answer.GetRuntimeHandlers(), want)
		}
	}
}

func runtimesTable(version string) string {
	if strings.HasPrefix(version, "1.") {
		return "plugins.io.containerd.grpc.v1.cri.containerd.runtimes."
	}
	return "plugins.io.containerd.cri.v1.runtime.containerd.runtimes."
}

// settings flattens a dump to "table key" and value, without what is empty and without the list of files.
func settings(dump string) map[string]string {
	flat := map[string]string{}
	table := ""
	for line := range strings.Lines(dump) {
		line = strings.NewReplacer("'", "", `"`, "").Replace(strings.TrimSpace(line))
		key, value, isKey := strings.Cut(line, " = ")
		switch {
		case strings.HasPrefix(line, "[") && !isKey:
			table = strings.Trim(line, "[]")
		case !isKey || key == "imports" || value == "" || value == "false" || value == "0" || value == "[]" ||
			value == "podsandbox":
		default:
			flat[strings.TrimSpace(table+" "+key)] = value
		}
	}
	return flat
}

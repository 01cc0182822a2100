// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// form is a way in which a config.toml can be written. A text "ADDRESS" is the containerd's own.
type form struct {
	name   string
	config string            // none if it is empty
	others map[string]string // further files, relative to the configuration's directory
	dropin bool              // config.toml itself does not change
}

const (
	v2cri  = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"x/y:1\"\n"
	v2runc = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
		"  runtime_type = \"io.containerd.runc.v2\"\n" +
		"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n"
	v3cri = "[plugins.'io.containerd.cri.v1.images']\n  snapshotter = 'native'\n" +
		"[plugins.\"io.containerd.cri.v1.runtime\".containerd]\n" +
		"  default_runtime_name = \"runc\"\n"
	grpcTable = "[grpc]\n  address = \"ADDRESS\"\n"
)

func forms1() []form {
	return []form{
		{name: "no runtime", config: "version = 2\n" + grpcTable},
		{name: "CRI without a runtime", config: v2cri + grpcTable},
		{name: "a runtime with options", config: "# comment\n" + v2cri + v2runc + grpcTable},
		{name: "no newline at the end", config: v2cri + v2runc + strings.TrimSpace(grpcTable)},
		{name: "version 1", config: "[plugins.cri]\n  sandbox_image = \"x/y:1\"\n" + grpcTable},
		{name: "version 1 with a runtime", config: "[plugins.cri.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n" + grpcTable},
		{name: "the whole default", config: "DEFAULT"},
		{
			name:   "imports of something else",
			config: "version = 2\nimports = [\"more/*.toml\"]\n" + v2runc + grpcTable,
			others: map[string]string{"more/a.toml": "version = 2\noom_score = 7\n"},
		},
	}
}

func forms2() []form {
	return []form{
		{name: "no imports", config: "# comment\n\nversion = 3\n" + grpcTable + v3cri},
		{name: "no version", config: grpcTable + v3cri},
		{name: "version 2", config: v2cri + v2runc + grpcTable},
		{name: "version 4", config: "version = 4\n[plugins.'io.containerd.server.v1.grpc']\n  address = 'ADDRESS'\n" + v3cri},
		{name: "a version and imports in a table only", config: grpcTable + "[plugins.\"other\"]\n  version = 3\n  imports = [\"x\"]\n"},
		{name: "an empty list", config: "version = 3\nimports = []\n" + grpcTable},
		{name: "no newline at the end", config: "version = 3\n" + v3cri + strings.TrimSpace(grpcTable)},
		{
			name: "a list of several lines",
			config: "version = 3\n# imports = [\"not/this\"]\nimports = [ # these\n  'a.toml',\n  \"b.toml\"\n]\n" +
				grpcTable,
			others: map[string]string{"a.toml": "version = 3\n" + v3cri, "b.toml": "version = 3\noom_score = 7\n"},
		},
		{name: "drop-ins", config: "version = 3\nimports = [\"DIRECTORY/conf.d/*.toml\"]\n" + grpcTable + v3cri, dropin: true},
		{
			name:   "relative drop-ins",
			config: "version = 3\nimports = ['conf.d/*.toml']\n" + grpcTable,
			others: map[string]string{"conf.d/a.toml": "version = 3\n" + v3cri},
			dropin: true,
		},
		{name: "the whole default", config: "DEFAULT", dropin: true},
	}
}

// Each form gets the handlers and keeps everything else it says, and is the same to the byte afterwards.
func TestConfig_KeepsWhatItSays(t *testing.T) {
	t.Run("containerd 1.6", func(t *testing.T) { testForms(t, release(t, "1.6"), forms1()[2:3]) })
	t.Run("containerd 1.7", func(t *testing.T) { testForms(t, release(t, "1.7"), forms1()) })
	t.Run("containerd 2.4", func(t *testing.T) { testForms(t, release(t, "2.4"), forms2()) })
}

func testForms(t *testing.T, daemon string, forms []form) {
	t.Helper()
	running := newNode(t, daemon, basic) // answers for all of them; restarts are tested elsewhere
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			n := running.sibling(t, f)
			n.testForm(f.dropin)
		})
	}
}

func (n *node) testForm(dropin bool) {
	n.Helper()
	before, dump, config := n.files(), n.dump(), n.read(n.config)
	n.want(0, []string{"handlers: sandbox"}, "install")
	n.wantHandlers(dump)
	if changed := n.read(n.config) != config; changed == dropin {
		n.Errorf("config.toml changed: %v, want %v\n%s", changed, !dropin, n.read(n.config))
	}
	installed := n.files()
	n.want(0, []string{"nothing to change"}, "install")
	n.wantFiles(installed)
	n.want(0, nil, "uninstall")
	if err := os.Remove(n.bindir); err != nil {
		n.Error(err)
	}
	n.wantFiles(before)
}

// Where there is no config.toml one is made, and goes again.
func TestConfig_Absent(t *testing.T) {
	for _, series := range []string{"1.7", "2.4"} {
		t.Run("containerd "+series, func(t *testing.T) {
			n := newNode(t, release(t, series), basic).sibling(t, form{})
			harness.Must(t, os.Remove(n.config))
			before := n.files()
			// Without a configuration containerd's socket is the machine's own. This ctr knows the test's.
			ctr := filepath.Join(filepath.Dir(n.config), "ctr")
			n.script(ctr, "shift 2\nexec "+filepath.Join(n.c.Env.Tools, "ctr")+" --address "+n.c.Address+" \"$@\"\n")
			n.want(0, []string{"handlers: sandbox"}, "install", "--ctr", ctr)
			got := settings(n.dump())[runtimesTable(n.c.Version)+"runc runtime_type"]
			if got != "io.containerd.runc.v2" {
				t.Errorf("handler runc is runtime %q", got)
			}
			n.want(0, []string{"nothing to change"}, "install", "--ctr", ctr)
			n.want(0, nil, "uninstall", "--ctr", ctr)
			_ = os.Remove(n.bindir)
			n.wantFiles(before)

			// Lines that somebody adds stay, with the version that they are for.
			n.want(0, nil, "install", "--ctr", ctr)
			n.write(n.config, n.read(n.config)+"[timeouts]\n  \"mine\" = \"7s\"\n")
			n.want(0, []string{"handlers: sandbox"}, "install", "--ctr", ctr)
			n.want(0, nil, "uninstall", "--ctr", ctr)
			if got := n.read(n.config); !strings.HasPrefix(got, "version = ") || !strings.Contains(got, "mine") || strings.Contains(got, shimName) {
				t.Errorf("the configuration is now\n%s", got)
			}
		})
	}
}

// Nodes with busybox in place of the GNU tools have all that install.sh needs.
func TestInstall_BusyboxIsEnough(t *testing.T) {
	running := newNode(t, release(t, "2.4"), basic)
	applets := t.TempDir()
	out, err := exec.CommandContext(t.Context(), running.c.Env.Busybox, "--list").Output()
	harness.Must(t, err)
	for applet := range strings.FieldsSeq(string(out)) {
		harness.Must(t, os.Symlink(running.c.Env.Busybox, filepath.Join(applets, applet)))
	}
	for _, f := range []form{forms2()[0], forms2()[6]} {
		t.Run(f.name, func(t *testing.T) {
			n := running.sibling(t, f)
			n.applets = applets
			n.testForm(false)
		})
	}
	// Here any runtime takes the default one away, which only a comparison shows.
	old := newNode(t, release(t, "1.7"), basic)
	for _, f := range forms1()[:2] {
		t.Run("1.7 "+f.name, func(t *testing.T) {
			n := old.sibling(t, f)
			n.applets = applets
			n.testForm(false)
		})
	}
}

// sibling is a node whose configuration is of a form, and whose restart does nothing.
func (n *node) sibling(t *testing.T, f form) *node {
	t.Helper()
	dir := t.TempDir()
	s := &node{
		T: t, c: n.c, binary: filepath.Join(dir, shimName), daemon: n.daemon, restart: "true",
		config: filepath.Join(dir, "config.toml"), conf: filepath.Join(dir, "conf.d"),
		bindir: filepath.Join(dir, "bin"),
	}
	s.script(s.binary, "echo Version: 1\n") // no container runs on it
	text := f.config
	if text == "DEFAULT" {
		out, err := exec.CommandContext(t.Context(), n.daemon, "config", "default").Output()
		harness.Must(t, err)
		text = strings.ReplaceAll(string(out), "/run/containerd/containerd.sock", "ADDRESS")
		text = strings.ReplaceAll(text, "/etc/containerd", dir) // the drop-ins of this machine are none of ours
	}
	s.write(s.config, strings.NewReplacer("ADDRESS", n.c.Address, "DIRECTORY", dir).Replace(text))
	for name, text := range f.others {
		s.write(filepath.Join(dir, name), text)
	}
	return s
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func (n *node) dropin() string { return filepath.Join(n.conf, shimName+".toml") }

// Other programs that write config.toml change quotes and drop comments, as `containerd config migrate` does.
// containerd does not start with an import that is not there, and its `config dump` says nothing of it.
func TestUninstall_AfterAnotherProgramHasWrittenTheConfiguration(t *testing.T) {
	running := newNode(t, release(t, "2.4"), basic)
	for name, tt := range map[string]struct {
		form   int
		former string // of what install.sh writes
		by     string
		status int
	}{
		"single quotes":      {0, `imports = ["PATH"] # ` + shimName, "imports = ['PATH']", 0},
		"no comment":         {0, `imports = ["PATH"] # ` + shimName, `imports = ["PATH"]`, 0},
		"first of a list":    {7, `"PATH", `, `'PATH', `, 0},
		"a list of our only": {0, `imports = ["PATH"] # ` + shimName, "imports = [\n  'PATH'\n]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := running.sibling(t, forms2()[tt.form])
			n.want(0, nil, "install")
			path := func(text string) string { return strings.ReplaceAll(text, "PATH", n.dropin()) }
			text := n.read(n.config)
			if !strings.Contains(text, path(tt.former)) {
				t.Fatalf("install.sh has written\n%s\nwant %s in it", text, path(tt.former))
			}
			n.write(n.config, strings.ReplaceAll(text, path(tt.former), path(tt.by)))
			before := n.files()
			if tt.status != 0 {
				n.want(tt.status, []string{"take it out of imports"}, "uninstall")
				n.wantFiles(before)
				return
			}
			n.want(0, []string{"handlers: sandbox"}, "install")
			n.want(0, nil, "uninstall")
			if text := n.read(n.config); strings.Contains(text, n.dropin()) {
				t.Errorf("the configuration still has the import:\n%s", text)
			}
			if _, err := os.Stat(n.dropin()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the imported file is there: %v", err)
			}
		})
	}
}

// A container that begins while containerd is restarted keeps the shim.
func TestUninstall_RefusesAContainerThatBeganMeanwhile(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic).sibling(t, forms2()[0])
	n.want(0, nil, "install")
	before := n.files()
	dir := t.TempDir()
	n.restart = "touch " + dir + "/restarted"
	ctr := filepath.Join(dir, "ctr")
	n.script(ctr, `case "$*" in *"containers ls"*)
if [ -e `+dir+`/restarted ]; then
	echo "CONTAINER IMAGE RUNTIME"
	echo "late image io.containerd.sandbox.v1"
	exit
fi ;;
*"namespaces ls"*) echo some; exit ;;
esac
exec `+filepath.Join(n.c.Env.Tools, "ctr")+` "$@"
`)
	n.want(3, []string{"container late in namespace some", "began meanwhile", "going back"}, "uninstall", "--ctr", ctr)
	n.wantFiles(before)
}

// A file of that name which somebody wrote by hand is theirs.
func TestInstall_DropInOfSomebodyElseStays(t *testing.T) {
	running := newNode(t, release(t, "2.4"), basic)
	const config = "version = 3\nimports = [\"DIRECTORY/conf.d/*.toml\"]\n" + grpcTable
	handler := "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sandbox]\n" +
		"runtime_type = 'io.containerd.sandbox.v1'\npod_annotations = ['io.containerd.sandbox.v1/*']\n"
	written := func(text string) map[string]string { return map[string]string{"conf.d/" + shimName + ".toml": text} }
	n := running.sibling(t, form{config: config, others: written(handler)})
	before := n.files()
	n.want(0, []string{"somebody else wrote, which stay: sandbox"}, "install")
	n.want(0, nil, "uninstall")
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
	n = running.sibling(t, form{config: config, others: written("version = 3\n")})
	before = n.files()
	n.want(1, []string{"somebody else wrote it"}, "install")
	n.wantFiles(before)
	if err := os.Remove(n.config); err != nil {
		t.Fatal(err)
	}
	before = n.files()
	n.binary = ""
	n.want(0, nil, "uninstall", "--config-only", "--force") // without a configuration its address is another
	n.wantFiles(before)
}

// Two containerds have their configurations in one directory, and so one drop-in.
func TestUninstall_KeepsWhatAnotherConfigurationImports(t *testing.T) {
	running := newNode(t, release(t, "2.4"), basic)
	for name, tt := range map[string]struct {
		imports string
		keeps   bool
	}{
		"by its path":     {`imports = ["DROPIN"]`, true},
		"all of conf.d":   {"imports = [\n  'CONF/*.toml' # all\n]", true},
		"by a short path": {`imports = ["conf.d/` + shimName + `.toml"]`, true},
		"in a comment":    {`# imports = ["DROPIN"]`, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := running.sibling(t, forms2()[0])
			before := n.files()
			n.want(0, nil, "install")
			other := filepath.Join(filepath.Dir(n.config), "other.toml")
			n.write(other, "version = 3\n"+strings.NewReplacer("DROPIN", n.dropin(), "CONF", n.conf).Replace(tt.imports)+"\n")
			installed := n.files()
			shim := filepath.Join(n.bindir, shimName)
			if tt.keeps {
				n.want(0, []string{n.dropin() + ": stays, " + other, shim + ": stays, " + other}, "uninstall")
				after := n.files()
				for _, file := range []string{n.dropin(), shim} {
					if after[file] != installed[file] || after[file] == "" {
						t.Errorf("%s was changed", file)
					}
				}
				if after[n.config] != before[n.config] {
					t.Errorf("the configuration is\n%s\nwant\n%s", after[n.config], before[n.config])
				}
				if err := os.Remove(other); err != nil {
					t.Fatal(err)
				}
			}
			n.want(0, nil, "uninstall")
			_ = os.Remove(n.bindir)
			delete(before, n.bindir)
			n.wantFiles(before)
		})
	}
}

func TestInstall_NamesAProgramThatIsAbsent(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic).sibling(t, forms2()[0])
	n.applets = t.TempDir()
	const tools = "awk cat chmod cmp cp date dirname grep id mkdir mktemp mv readlink rm rmdir sed sh sort sync tail timeout " +
		"tr"
	for tool := range strings.FieldsSeq(tools) {
		path, err := exec.LookPath(tool)
		if err == nil {
			err = os.Symlink(path, filepath.Join(n.applets, tool))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := n.files()
	n.want(1, []string{"the program diff is absent"}, "install")
	n.wantFiles(before)
}

// Whoever can open the lock can keep it.
func TestInstall_NobodyElseCanTakeTheLock(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic).sibling(t, forms2()[0])
	lock := "/run/" + shimName + ".lock"
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.want(0, nil, "install", "--dry-run")
	if info, err := os.Stat(lock); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the lock = %v, %v, want 0600", info.Mode(), err)
	}
}

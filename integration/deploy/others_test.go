// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"errors"
	"os"
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
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// noCRI is a containerd that comes back without CRI.
const noCRI = `sed 's/^\[plugins.*containerd.runtimes.runc.*/` +
	`[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "none"\n&/' "$2" >"$2.broken"
set -- "$1" "$2.broken"`

// wrapper makes a containerd that does something else first when it is started with the new configuration.
func wrapper(t *testing.T, real, daemon string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "containerd")
	script := "#!/bin/sh\ncase \"$*\" in *config\\ dump | *--version) ;; *)\nif grep -q " + shimName +
		" \"$2\"; then\n:\n" + daemon + "\nfi ;; esac\nexec " + real + " \"$@\"\n"
	harness.Must(t, os.WriteFile(name, []byte(script), 0o755))
	return name
}

// What goes wrong after the files were replaced ends with the former files, byte for byte, and a containerd that
// answers. Each fault is one that the check before the restart cannot see.
func TestInstall_ContainerdThatFailsGetsItsFormerFiles(t *testing.T) {
	tests := []struct {
		name     string
		daemon   string // what containerd does when it is started with the new configuration; none is to start
		restart  string // the restart command; none is that of the node
		restarts int
		printed  []string
	}{
		{
			name: "containerd ends", daemon: "echo no >&2; exit 1", restarts: 2,
			printed: []string{"could not be restarted", "going back", "answers with its former configuration"},
		},
		{
			name: "CRI is not loaded", daemon: noCRI, restarts: 2,
			printed: []string{"could not load io.containerd.", "going back", "answers with its former configuration"},
		},
		{name: "the restart fails", restart: "exit 7", printed: []string{"\"exit 7\" fails with status 7", "answers with its former configuration"}},
		{name: "the restart hangs", restart: "sleep 1000", printed: []string{"fails with status 124", "answers with its former configuration"}},
	}
	real := release(t, "2.4")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, wrapper(t, real, tt.daemon), basic)
			if tt.restart != "" {
				n.restart = tt.restart
			}
			before := n.files()
			n.want(3, tt.printed, "install", "--timeout", "2")
			n.wantRestarts(tt.restarts)
			delete(before, n.bindir)
			_ = os.Remove(n.bindir) // it may stay, empty
			delete(before, n.config+".broken")
			_ = os.Remove(n.config + ".broken")
			n.wantFiles(before)
			if _, err := n.client().Version(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A containerd that does not come back with its former files either has a status of its own.
func TestInstall_ContainerdThatNeverComesBackIsReported(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	before := n.files()
	pid := filepath.Join(n.c.Dir, "stop")
	n.script(pid, "exit 1\n")
	n.restart = pid
	harness.Must(t, n.c.Stop())
	n.want(4, []string{"going back", "does not answer with its former configuration either"}, "install",
		"--timeout", "1")
	n.want(1, []string{"nobody knows which containers exist"}, "uninstall")
	_ = os.Remove(n.bindir)
	delete(before, n.bindir)
	got := n.files()
	delete(got, n.config+".sandbox-unfinished") // so that the next run restarts containerd
	if len(got) != len(before) || got[n.config] != before[n.config] {
		t.Errorf("files are %q, want %q", got, before)
	}
}

// killInstaller is a restart command that kills install.sh: timeout is between.
const killInstaller = "kill -KILL $(awk '$1 == \"PPid:\" { print $2 }' /proc/$PPID/status)"

func (n *node) wantKilled(args ...string) {
	n.Helper()
	cmd := n.command(args...)
	if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() >= 0 {
		n.Fatalf("install.sh was not killed: %v\n%s", err, out)
	}
}

// A run that was killed between the files and the restart is made good by the next.
func TestInstall_KilledRunIsFinishedByTheNext(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	real := n.restart
	n.restart = killInstaller
	n.wantKilled("install")
	n.restart = real
	n.want(0, []string{"cut short", "answers on"}, "install")
	n.wantRestarts(1)
	n.wantCRI()
	n.want(0, nil, "install")
	n.wantRestarts(0)
	left, err := filepath.Glob(n.config + ".*")
	if err != nil || len(left) != 1 || left[0] != n.config+".before-sandbox" {
		t.Errorf("beside the configuration: %q, %v", left, err)
	}
}

// A refusal names its cause, and changes nothing.
func TestInstall_Refused(t *testing.T) {
	const running = "version = 3\n" + grpcTable
	tests := []struct {
		name    string
		config  string // running if it is empty
		before  func(n *node)
		args    []string
		status  int
		printed []string
	}{
		{name: "no action", args: []string{""}, status: 2, printed: []string{"install or uninstall?"}},
		{name: "an unknown option", args: []string{"install", "--fast"}, status: 2, printed: []string{`"--fast": no such option`}},
		{name: "a path with a space", args: []string{"install", "--bindir", "/a b"}, status: 2, printed: []string{`"/a b": want a path of letters`}},
		{
			name: "a shim that does not run here", args: []string{"install", "--binary", "DIRECTORY/shim"}, status: 1,
			before: func(n *node) {
				n.script(filepath.Join(filepath.Dir(n.config), "shim"), "echo libseccomp.so.2: absent; exit 127\n")
			},
			printed: []string{"does not run on this node: libseccomp.so.2: absent"},
		},
		{
			name: "a containerd that is too old", args: []string{"install", "--containerd", "DIRECTORY/old"}, status: 1,
			before:  func(n *node) { n.script(filepath.Join(filepath.Dir(n.config), "old"), "echo containerd x v1.5.18 y\n") },
			printed: []string{"containerd 1.5.18: want 1.6 or later"},
		},
		{
			name: "a configuration that cannot be read", config: running + "[plugins\n", args: []string{"install"}, status: 1,
			printed: []string{"containerd 2.4.2+unknown cannot read", "as it is now"},
		},
		{
			name: "no CRI", config: "disabled_plugins = ['io.containerd.grpc.v1.cri']\n" + running, args: []string{"install"}, status: 1,
			printed: []string{"disables CRI", "--binary-only"},
		},
		{
			name: "a handler of that name", args: []string{"install"}, status: 1,
			config: running +
				"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sandbox]\nruntime_type = 'io.containerd.kata.v2'\n",
			printed: []string{`runtimes.sandbox is runtime "io.containerd.kata.v2" already`},
		},
		{
			name: "an import that does not exist", config: "imports = ['conf.d/*.toml', 'config.toml', 'none.toml']\n" + running,
			args: []string{"install"}, status: 1,
			printed: []string{"imports none.toml, which does not exist: containerd would not start again"},
		},
		{
			name: "a symbolic link", args: []string{"install"}, status: 1,
			before: func(n *node) {
				real := filepath.Join(filepath.Dir(n.config), "real.toml")
				harness.Must(n, os.Rename(n.config, real))
				harness.Must(n, os.Symlink(real, n.config))
			},
			printed: []string{"is a symbolic link"},
		},
		{name: "two at once", args: []string{"install"}, status: 1, before: lock, printed: []string{"another install.sh is at work"}},
	}
	node := newNode(t, release(t, "2.4"), basic)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := form{config: tt.config}
			if f.config == "" {
				f.config = running
			}
			n := node.sibling(t, f)
			if tt.before != nil {
				tt.before(n)
			}
			for i, arg := range tt.args {
				tt.args[i] = strings.ReplaceAll(arg, "DIRECTORY", filepath.Dir(n.config))
			}
			before := n.files()
			n.want(tt.status, tt.printed, tt.args...)
			n.wantFiles(before)
		})
	}
}

// containerd 1.x lets an imported file replace the section of CRI, handlers included.
func TestInstall_SectionThatAnImportReplacesIsRefused(t *testing.T) {
	n := newNode(t, release(t, "1.7"), basic).sibling(t, form{
		config: "version = 2\nimports = [\"more.toml\"]\n" + grpcTable,
		others: map[string]string{"more.toml": v2cri + v2runc},
	})
	before := n.files()
	n.want(1, []string{"replaces the section of CRI"}, "install")
	n.wantFiles(before)
}

// Handlers that somebody wrote by hand are theirs: before, after, and when the shim goes.
func TestInstall_HandlersThatExistStay(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic).sibling(t, form{
		config: "version = 3\n" + grpcTable +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.mine]\nruntime_type = 'io.containerd.sandbox.v1'\n",
	})
	before := n.files()
	n.want(0, []string{"somebody else wrote, which stay: mine"}, "install")
	n.want(0, nil, "uninstall")
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
}

// Without the mark at their end nobody knows which lines are the installer's.
func TestInstall_MarkThatIsMissing(t *testing.T) {
	n := newNode(t, release(t, "1.7"), basic).sibling(t, form{config: v2cri + v2runc + grpcTable})
	n.want(0, nil, "install")
	n.write(n.config, strings.Replace(n.read(n.config), "# end "+shimName+"\n", "oom_score = 7\n", 1))
	before := n.files()
	said := []string{"config.toml: the line \"# end " + shimName + "\" is missing: put it back"}
	n.want(1, said, "install")
	n.want(1, said, "uninstall")
	n.wantFiles(before)
}

// ctr, nerdctl and Docker need the binary only.
func TestInstall_BinaryOnly(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	before := n.files()
	n.want(0, nil, "install", "--binary-only")
	n.testContainers("--binary-only")
	n.want(0, nil, "uninstall", "--binary-only")
	n.wantRestarts(0)
	_ = os.Remove(n.bindir)
	n.wantFiles(before)
}

// Status 3 would say that something was put back, and the installer's pod would not try again.
func TestInstall_WhereTheShimCannotBeWrittenChangesNothing(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	n.bindir = "/proc/sandbox-shim" // procfs makes no directory
	before := n.files()
	n.want(1, []string{"cannot write /proc/sandbox-shim/", "nothing was changed"}, "install")
	n.wantRestarts(0)
	n.wantFiles(before)
}

// A package brings the binary, and takes it away.
func TestInstall_ConfigOnly(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	former := n.binary
	n.want(2, []string{"want no --binary"}, "install", "--config-only")
	n.binary = ""
	n.want(2, []string{"want one of them"}, "install", "--config-only", "--binary-only")
	n.want(1, []string{n.c.Env.Shim + ", which a package would have"}, "install", "--config-only")
	n.script(n.c.Env.Shim, "") // executable; the next line replaces the text
	n.write(n.c.Env.Shim, n.read(former))
	before := n.files()
	n.want(0, []string{"is 0.", "handlers: sandbox"}, "install", "--config-only")
	n.wantRestarts(1)
	n.wantCRI()
	n.want(0, []string{"would remove what install.sh wrote"}, "uninstall", "--config-only", "--dry-run")
	n.want(0, []string{"stays, it belongs to a package"}, "uninstall", "--config-only")
	n.wantRestarts(1)
	n.wantFiles(before)
}

func lock(n *node) {
	f, err := os.OpenFile("/run/"+shimName+".lock", os.O_CREATE|os.O_WRONLY, 0o600)
	harness.Must(n, err)
	n.Cleanup(func() { _ = f.Close() }) // this unlocks
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		n.Fatalf("lock %s: %v", f.Name(), err)
	}
}

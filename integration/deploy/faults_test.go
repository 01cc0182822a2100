// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
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

// Whoever reads the output goes away while containerd is restarted: head, tee after control-C, a connection.
func TestInstall_GoesBackThoughNobodyReadsItsOutput(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	gone := filepath.Join(t.TempDir(), "gone")
	n.restart = "until [ -e " + gone + " ]; do sleep 0.01; done; exit 7"
	before := n.files()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.command("install")
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close() // the script has it
	said := ""
	for lines := bufio.NewScanner(out); !strings.Contains(said, "restarting containerd") && lines.Scan(); {
		said += lines.Text() + "\n"
	}
	_ = out.Close()
	n.write(gone, "")
	_ = cmd.Wait() // its status is compared below
	if got := cmd.ProcessState.ExitCode(); got != 3 {
		t.Errorf("install.sh ends with %v, want status 3; it had said\n%s", cmd.ProcessState, said)
	}
	_ = os.Remove(n.bindir)
	delete(before, n.bindir)
	n.wantFiles(before)
	if _, err := n.client().Version(t.Context()); err != nil {
		t.Error(err)
	}
}

// A containerd that does not come back with its former files either has a status of its own.
func TestInstall_ContainerdThatNeverComesBackIsReported(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	before := n.files()
	pid := filepath.Join(n.c.Dir, "stop")
	n.script(pid, "exit 1\n")
	n.restart = pid
	if err := n.c.Stop(); err != nil {
		t.Fatal(err)
	}
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

// wantKilled runs install.sh, which its restart command kills.
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

// If the files of a killed run are what keeps containerd from coming back, the next run goes back to those before both.
func TestInstall_KilledRunThatBrokeContainerdIsUndoneByTheNext(t *testing.T) {
	tests := []struct {
		name    string
		daemon  string // what containerd does when it is started with the new configuration
		printed string
	}{
		{name: "containerd ends", daemon: "exit 1", printed: "could not be restarted"},
		{name: "CRI is not loaded", daemon: noCRI, printed: "could not load io.containerd."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, wrapper(t, release(t, "2.4"), tt.daemon), basic)
			before := n.files()
			real := n.restart
			n.restart = real + "; " + killInstaller
			n.wantKilled("install")
			n.wantRestarts(1)

			n.restart = real
			n.want(3, []string{"cut short", tt.printed, "answers with its former configuration"}, "install",
				"--timeout", "5")
			n.wantRestarts(2)
			_ = os.Remove(n.config + ".broken")
			delete(before, n.bindir)
			_ = os.Remove(n.bindir) // it may stay, empty
			n.wantFiles(before)
			n.want(0, []string{"nothing to change"}, "uninstall")
		})
	}
}

// What somebody changed after a run was killed is not undone, nor is the shim of a package.
func TestInstall_KilledRunDoesNotUndoWhatOthersChanged(t *testing.T) {
	n := newNode(t, release(t, "2.4"), basic)
	n.want(0, nil, "install", "--binary-only")
	binary := n.binary
	n.binary, n.restart = "", killInstaller
	n.wantKilled("install", "--config-only")
	newer := n.read(binary) + "newer"
	n.write(n.c.Env.Shim, newer)
	n.restart = "exit 7"
	n.want(3, []string{"cut short", "going back"}, "install", "--config-only", "--timeout", "2")
	if n.read(n.c.Env.Shim) != newer {
		t.Error("the package's shim was replaced by the former one")
	}

	n.restart = killInstaller
	n.wantKilled("install", "--config-only")
	changed := n.read(n.config) + "# mine\n"
	n.write(n.config, changed)
	n.restart = "exit 7"
	n.want(3, []string{"cut short", "going back"}, "install", "--config-only", "--timeout", "2")
	if got := n.read(n.config); got != changed {
		t.Errorf("the configuration is\n%s\nwant\n%s", got, changed)
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
		{name: "an unknown action", args: []string{"remove"}, status: 2, printed: []string{`"remove": want install or uninstall`}},
		{name: "an unknown option", args: []string{"install", "--fast"}, status: 2, printed: []string{`"--fast": no such option`}},
		{name: "an option without its value", args: []string{"install", "--config"}, status: 2, printed: []string{"--config: a value is missing"}},
		{name: "a time that is none", args: []string{"install", "--timeout", "1m"}, status: 2, printed: []string{`--timeout "1m": want a number`}},
		{name: "a relative path", args: []string{"install", "--config", "config.toml"}, status: 2, printed: []string{`"config.toml": want an absolute path`}},
		{name: "a path with a space", args: []string{"install", "--bindir", "/a b"}, status: 2, printed: []string{`"/a b": want a path of letters`}},
		{name: "no such shim", args: []string{"install", "--binary", "/none"}, status: 1, printed: []string{`--binary "/none": no such file`}},
		{
			name: "a shim that does not run here", args: []string{"install", "--binary", "DIRECTORY/shim"}, status: 1,
			before: func(n *node) {
				n.script(filepath.Join(filepath.Dir(n.config), "shim"), "echo libseccomp.so.2: absent; exit 127\n")
			},
			printed: []string{"does not run on this node: libseccomp.so.2: absent"},
		},
		{name: "no such containerd", args: []string{"install", "--containerd", "/none"}, status: 1, printed: []string{`--containerd "/none": no such program`}},
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
				if err := os.Rename(n.config, real); err != nil {
					n.Fatal(err)
				}
				if err := os.Symlink(real, n.config); err != nil {
					n.Fatal(err)
				}
			},
			printed: []string{"is a symbolic link"},
		},
		{
			name: "a read-only file system", args: []string{"install"}, status: 1,
			before: func(n *node) {
				dir := filepath.Dir(n.config)
				for _, flags := range []uintptr{
					syscall.MS_BIND,
					syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY,
				} {
					if err := syscall.Mount(dir, dir, "", flags, ""); err != nil {
						n.Fatal(err)
					}
				}
				n.Cleanup(func() {
					if err := syscall.Unmount(dir, 0); err != nil {
						n.Error(err)
					}
				})
			},
			printed: []string{"Read-only file system", "cannot write", "nothing was changed"},
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
	n.want(0, []string{"handlers that somebody else wrote, whose pods fail without the shim: mine"}, "uninstall")
	_ = os.Remove(n.bindir)
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

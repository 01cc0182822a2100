// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	v2options = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n"
	v2other   = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\n" +
		"  runtime_type = \"io.containerd.runc.v2\"\n"
	v2network = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/opt/bin\"\n"
	v3network = "[plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dirs = ['/opt/bin']\n"
)

// Lines that somebody adds to those of the installer keep their meaning: with the next installation, and without one.
func TestConfig_LinesAddedSince(t *testing.T) {
	old, recent := newNode(t, release(t, "1.7"), basic), newNode(t, release(t, "2.4"), basic)
	for name, tt := range map[string]struct {
		node   *node
		config string // none if it is empty
		added  string
		keys   []string // of the dump, below runtimes if they begin with a dot
		left   string   // of the installer's lines
		said   string
	}{
		"1.7: options of the runtime that only the installer names": {
			node: old, config: "version = 2\n" + grpcTable, added: v2options,
			keys: []string{".runc runtime_type", ".runc.options SystemdCgroup"},
			left: "runtimes.runc]", said: "what this needs stays there",
		},
		"1.7: another runtime": {
			node: old, config: "version = 2\n" + grpcTable, added: v2other,
			keys: []string{".runc runtime_type", ".other runtime_type"},
			left: "runtimes.runc]", said: "what this needs stays there",
		},
		"1.7: the type too": {
			node: old, config: "version = 2\n" + v2other + grpcTable, added: v2runc,
			keys: []string{".runc runtime_type", ".runc.options SystemdCgroup"},
		},
		"1.7: no file at first": {
			node: old, added: v2network, left: "version = 2",
			keys: []string{".runc runtime_type", "plugins.io.containerd.grpc.v1.cri.cni bin_dir"},
		},
		"2.4: no file at first": {
			node: recent, added: v3network, left: "version = 3",
			keys: []string{".runc runtime_type", "plugins.io.containerd.cri.v1.runtime.cni bin_dirs"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := tt.node.sibling(t, form{config: tt.config})
			// Without a configuration containerd's socket is the machine's own. This ctr knows the test's.
			ctr := filepath.Join(filepath.Dir(n.config), "ctr")
			n.script(ctr, "shift 2\nexec "+filepath.Join(n.c.Env.Tools, "ctr")+" --address "+n.c.Address+" \"$@\"\n")
			if tt.config == "" {
				if err := os.Remove(n.config); err != nil {
					t.Fatal(err)
				}
			}
			n.want(0, nil, "install", "--ctr", ctr)
			n.write(n.config, n.read(n.config)+tt.added)
			want := settings(n.dump())
			for range 2 {
				n.want(0, []string{"handlers: sandbox"}, "install", "--ctr", ctr)
				n.wantSettings(want, tt.keys...)
				for _, key := range []string{"version = ", "runtimes.runc]", "runtimes.sandbox]"} {
					if text := n.read(n.config); strings.Count(text, key) > 1 {
						t.Errorf("%q is there twice:\n%s", key, text)
					}
				}
			}
			n.want(0, []string{tt.said}, "uninstall", "--ctr", ctr)
			n.wantSettings(want, tt.keys...)
			text := n.read(n.config)
			if strings.Contains(text, shimName) || strings.Contains(text, "sandbox.v1") || !strings.Contains(text, tt.added) {
				t.Errorf("the configuration is now\n%s", text)
			}
			if tt.left == "" {
				if former := strings.ReplaceAll(tt.config, "ADDRESS", n.c.Address) + tt.added; text != former {
					t.Errorf("the configuration is\n%s\nwant\n%s", text, former)
				}
			} else if !strings.Contains(text, tt.left) {
				t.Errorf("the configuration is\n%s\nwant %q in it", text, tt.left)
			}
			after := n.files()
			n.want(0, []string{"nothing to change"}, "uninstall", "--ctr", ctr)
			n.wantFiles(after)
		})
	}
}

// In containerd 1.x a handler that somebody added stands beside the installer's.
func TestInstall_HandlerAddedToThoseOfTheInstaller(t *testing.T) {
	n := newNode(t, release(t, "1.7"), basic).sibling(t, form{config: v2cri + v2runc + grpcTable})
	n.want(0, nil, "install")
	const added = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.sandbox-unsafe]\n" +
		"  runtime_type = \"io.containerd.sandbox.v1\"\n"
	n.write(n.config, n.read(n.config)+added)
	want := settings(n.dump())
	for range 2 {
		n.want(0, []string{"\nhandlers: sandbox\n"}, "install")
		n.wantSettings(want, ".sandbox runtime_type", ".sandbox-unsafe runtime_type")
	}
	n.want(0, []string{"whose pods fail without the shim: sandbox-unsafe"}, "uninstall")
	former := strings.ReplaceAll(v2cri+v2runc+grpcTable, "ADDRESS", n.c.Address) + added
	if text := n.read(n.config); text != former {
		t.Errorf("the configuration is\n%s\nwant\n%s", text, former)
	}
}

// The same after a run that was cut short.
func TestConfig_LinesAddedBeforeAKilledRun(t *testing.T) {
	n := newNode(t, release(t, "1.7"), basic).sibling(t, form{config: "version = 2\n" + grpcTable})
	n.want(0, nil, "install")
	n.write(n.config, n.read(n.config)+v2options)
	want, restart := settings(n.dump()), n.restart
	n.restart = killInstaller
	n.wantKilled("install")
	n.restart = restart
	n.want(0, []string{"cut short", "handlers: sandbox"}, "install")
	n.wantSettings(want, ".runc runtime_type", ".runc.options SystemdCgroup")
}

// A configuration with which CRI does not work is none to keep: in containerd 1.x that is one without its default runtime.
func TestConfig_ThatBreaksCRIIsMended(t *testing.T) {
	n := newNode(t, release(t, "1.7"), func(n *node) string { return basic1(n) + v2runc })
	want := settings(n.dump())
	n.want(0, nil, "install")
	n.write(n.config, strings.Replace(n.read(n.config), v2runc, "", 1))
	if err := n.restartContainerd(); err != nil {
		t.Fatal(err)
	}
	n.want(0, []string{"handlers: sandbox"}, "install")
	n.wantSettings(want, ".runc runtime_type")
	n.wantCRI()
}

// Editors add blanks, or a carriage return, to the ends of lines.
func TestConfig_MarksWithBlanks(t *testing.T) {
	running := newNode(t, release(t, "1.7"), basic)
	for _, more := range []string{" ", "\r"} {
		n := running.sibling(t, form{config: v2cri + v2runc + grpcTable})
		before := n.files()
		n.want(0, nil, "install")
		marks := strings.NewReplacer("these lines\n", "these lines"+more+"\n", "# end "+shimName, "# end "+shimName+more)
		n.write(n.config, marks.Replace(n.read(n.config)))
		n.want(0, []string{"handlers: sandbox"}, "install")
		n.want(0, nil, "uninstall")
		_ = os.Remove(n.bindir)
		n.wantFiles(before)
	}
}

// Without the mark at their end nobody knows which lines are the installer's.
func TestInstall_MarkThatIsMissing(t *testing.T) {
	n := newNode(t, release(t, "1.7"), basic).sibling(t, form{config: v2cri + v2runc + grpcTable})
	n.want(0, nil, "install")
	n.write(n.config, strings.Replace(n.read(n.config), "# end "+shimName+"\n", v2network, 1))
	before := n.files()
	said := []string{"config.toml: the line \"# end " + shimName + "\" is missing: put it back"}
	n.want(1, said, "install")
	n.want(1, said, "uninstall")
	n.wantFiles(before)
}

// wantSettings checks what containerd makes of some keys, which must be there.
func (n *node) wantSettings(want map[string]string, keys ...string) {
	n.Helper()
	got := settings(n.dump())
	for _, key := range keys {
		if strings.HasPrefix(key, ".") {
			key = strings.TrimSuffix(runtimesTable(n.c.Version), ".") + key
		}
		if want[key] == "" || got[key] != want[key] {
			n.Errorf("%s = %q, want %q", key, got[key], want[key])
		}
	}
}

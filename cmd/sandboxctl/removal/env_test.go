// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

const kind = "io.containerd.runtime.v2.task"

// place is a state directory of a containerd with what a shim left, a shim that removes it, and what is a leftover.
type place struct {
	*testing.T
	dir   string
	list  []leftover.Leftover
	looks int
	// look is called before each look with its number, from 1.
	look func(n int)
	// run is what the delete command does.
	run string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "removal-test-")
	if err != nil {
		t.Fatalf("these tests need root: %v", err)
	}
	p := &place{T: t, dir: dir, look: func(int) {}}
	t.Cleanup(func() {
		mounts, err := machine.Root("/").Mounts()
		p.must(err)
		for _, m := range slices.Backward(mounts) {
			if machine.Within(dir, m.Mountpoint) {
				p.must(unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW))
			}
		}
		p.must(os.RemoveAll(dir))
	})
	p.must(os.MkdirAll(p.path("state", kind, "ns"), 0o711))
	p.must(os.MkdirAll(p.path("runc/ns"), 0o711))
	p.must(os.Mkdir(p.path("s"), 0o711))
	p.write("precious/file", "")
	return p
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *place) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *place) bundlePath(elem ...string) string {
	return p.path(append([]string{"state", kind, "ns", "c"}, elem...)...)
}

func (p *place) write(name, text string) {
	p.Helper()
	p.must(os.MkdirAll(filepath.Dir(p.path(name)), 0o711))
	p.must(os.WriteFile(p.path(name), []byte(text), 0o600))
}

// bundle makes one, and says that it is a leftover.
func (p *place) bundle() leftover.Leftover {
	p.Helper()
	p.must(os.MkdirAll(p.bundlePath("rootfs"), 0o711))
	p.must(os.Chmod(p.bundlePath(), 0o700))
	p.write("state/"+kind+"/ns/c/config.json", "{}")
	p.write("state/"+kind+"/ns/c/deep/er/file", "")
	p.must(os.Symlink(p.path("precious"), p.bundlePath("link")))
	p.must(os.MkdirAll(p.path("root", kind, "ns/c"), 0o711))
	p.must(os.Symlink(p.path("root", kind, "ns/c"), p.bundlePath("work")))
	l := leftover.Leftover{Kind: leftover.Bundles, Path: p.bundlePath()}
	l.Target = leftover.Target{Name: leftover.Name{Namespace: "ns", ID: "c"}, Bundles: []string{l.Path}, States: []string{p.path("runc/ns/c")}}
	p.list = append(p.list, l)
	return l
}

// state makes a state directory, and says that it is a leftover.
func (p *place) state() leftover.Leftover {
	p.Helper()
	p.write("runc/ns/c/state.json", "{}")
	l := leftover.Leftover{Kind: leftover.States, Path: p.path("runc/ns/c")}
	l.Target = leftover.Target{Name: leftover.Name{Namespace: "ns", ID: "c"}, Bundles: []string{p.bundlePath()}, States: []string{l.Path}}
	p.list = append(p.list, l)
	p.run = "rm -r " + l.Path
	return l
}

func (p *place) mount(at string) {
	p.Helper()
	p.must(os.MkdirAll(at, 0o711))
	p.must(unix.Mount(p.path("precious"), at, "", unix.MS_BIND, ""))
}

// remover has a shim that writes down its arguments and does what the test says.
func (p *place) remover() Remover {
	p.write("containerd-shim-sandbox-v1", "#!/bin/sh\necho \"$@\" >>"+p.path("runs")+"\n"+p.run+"\n")
	p.must(os.Chmod(p.path("containerd-shim-sandbox-v1"), 0o755))
	return Remover{
		State: p.path("state"), Address: "/a",
		Look: func(context.Context) ([]leftover.Leftover, error) {
			p.looks++
			p.look(p.looks)
			return p.list, nil
		},
		Binary: func(string) (string, error) { return p.path("containerd-shim-sandbox-v1"), nil },
	}
}

// leaves fails the test unless a leftover stays, for a reason.
func (p *place) leaves(l leftover.Leftover, why string) {
	p.Helper()
	err := p.remover().Remove(p.Context(), l)
	if err == nil || !strings.Contains(err.Error(), why) {
		p.Errorf("Remove(%s) = %v, want %q", l.Path, err, why)
	}
	p.there(p.path("precious/file"))
}

func (p *place) removes(l leftover.Leftover) {
	p.Helper()
	if err := p.remover().Remove(p.Context(), l); err != nil {
		p.Errorf("Remove(%s) = %v", l.Path, err)
	}
	p.gone(l.Path)
	p.there(p.path("precious/file"))
}

func (p *place) there(path string) {
	p.Helper()
	if _, err := os.Lstat(path); err != nil {
		p.Errorf("removed: %v", err)
	}
}

func (p *place) gone(path string) {
	p.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		p.Errorf("%s is left: %v", path, err)
	}
}

// ran returns the calls of the delete command.
func (p *place) ran() string {
	text, _ := os.ReadFile(p.path("runs")) // it was not called
	return strings.TrimSpace(string(text))
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package leftover finds what dead shims left on a machine, and says the commands that remove it. It removes nothing
// itself.
//
// [Take] lists what lies there, and [Scan.Find] tells, by what containerd knows, what of it is a leftover. What cannot
// be told is none: a shim whose address is not known may live.
package leftover

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

// Kind of a leftover.
type Kind string

// Kinds.
const (
	Bundles Kind = "leftover-bundles"
	Sockets Kind = "leftover-sockets"
	Mounts  Kind = "leftover-mounts"
	States  Kind = "leftover-states"
	Shims   Kind = "leftover-shims"
)

// NeedsKnown reports whether only containerd can tell what is one.
func (k Kind) NeedsKnown() bool { return k == Mounts || k == States || k == Shims }

// Leftover is something that a dead shim left, or a shim that nobody knows.
type Leftover struct {
	Kind    Kind   `json:"check"`
	Path    string `json:"path,omitempty"`
	Pid     int    `json:"pid,omitempty"`
	Text    string `json:"text"`              // what it is
	Caution string `json:"caution,omitempty"` // why somebody should look before; empty: nobody misses it
	Mend    string `json:"mend"`              // the command that removes it
}

// Name is that of a container or a pod.
type Name struct{ Namespace, ID string }

// Known are the containers, tasks and sandboxes that containerd has.
type Known map[Name]bool

// Config says where to look.
type Config struct {
	Root    machine.Root
	State   string // state directory of containerd
	Sockets string // directory of the sockets of shims
	Address string // socket of containerd, as shims are told
	Daemon  int    // process of containerd; 0: it does not run
}

// Scan is what lies on a machine and may be a leftover.
type Scan struct {
	Config
	configured string // its State, which labels have

	bundles []bundle
	shims   []shim
	mounts  []string // mount points below bundles
	states  []state
	sockets []string // on which nobody listens
}

// Find tells which are leftovers. unknown says why it is not known what containerd has; nil: it is.
func (s *Scan) Find(known Known, unknown error) []Leftover {
	list := s.findBundles(known, unknown)
	for _, path := range s.sockets {
		list = append(list, Leftover{
			Kind: Sockets, Path: path, Text: path + ": nobody listens", Mend: "rm -- " + quote(path),
		})
	}
	if unknown != nil {
		return list
	}
	return slices.Concat(list, s.findMounts(known), s.findStates(known), s.findShims(known))
}

func (s *Scan) findBundles(known Known, unknown error) (list []Leftover) {
	isKnown := func(n Name) bool { return known[n] }
	for _, b := range s.bundles {
		if !b.ours || b.alive {
			continue
		}
		mounts, left := s.leftIn(b)
		l := Leftover{Kind: Bundles, Path: b.dir, Text: b.dir + ": its shim is dead" + left}
		ctr := fmt.Sprintf("ctr -a %s -n %s", quote(s.Address), quote(b.Namespace))
		switch {
		case unknown != nil:
			l.Caution = "containerd, which alone knows whether it is still wanted, does not answer; " +
				"it removes the bundle when it starts"
			l.Mend = "systemctl start containerd"
		case isKnown(b.Name):
			l.Caution = "containerd still knows the container"
			l.Mend = fmt.Sprintf("%s task rm -f %s", ctr, quote(b.ID))
		case slices.ContainsFunc(b.members, isKnown):
			l.Caution = "containerd still knows others of its pod"
			l.Mend = ctr + " task ls, and remove those of the pod"
		case b.hidden: // containerd began to remove it, and leaves alone what is hidden
			l.Mend = umount(mounts) + "rm -r --one-file-system -- " + quote(b.dir)
		default:
			l.Mend = "systemctl restart containerd removes it, and ends no container that runs"
		}
		list = append(list, l)
	}
	return list
}

// leftIn says what there still is of the container of a bundle.
func (s *Scan) leftIn(b bundle) (mounts []string, text string) {
	for _, m := range s.mounts {
		if machine.Within(b.dir, s.Root.Path(m)) {
			mounts = append(mounts, m)
		}
	}
	var parts []string
	if len(mounts) > 0 {
		parts = append(parts, fmt.Sprintf("mounts: %d", len(mounts)))
	}
	for _, st := range s.states {
		if st.Name == b.Name && st.procs > 0 {
			parts = append(parts, fmt.Sprintf("processes: %d", st.procs))
		}
	}
	if parts == nil {
		return mounts, ""
	}
	return mounts, " (" + strings.Join(parts, ", ") + ")"
}

func (s *Scan) findMounts(known Known) (list []Leftover) {
	byBundle := map[string][]string{}
	var dirs []string
	for _, m := range s.mounts {
		dir := s.bundleOf(m)
		if dir == "" || s.claimed(dir, known) {
			continue
		}
		if byBundle[dir] == nil {
			dirs = append(dirs, dir)
		}
		byBundle[dir] = append(byBundle[dir], m)
	}
	for _, dir := range dirs {
		mounts := byBundle[dir]
		list = append(list, Leftover{
			Kind: Mounts, Path: dir,
			Text: fmt.Sprintf("%s: nobody has this bundle, and there is mounted: %s", dir, strings.Join(mounts, ", ")),
			Mend: strings.TrimSuffix(umount(mounts), " && "),
		})
	}
	return list
}

// bundleOf is the bundle to which a mount point belongs, a path of the machine.
func (s *Scan) bundleOf(mount string) string {
	for _, kind := range bundleDirs {
		rest, found := strings.CutPrefix(mount, filepath.Join(s.State, kind)+"/")
		if parts := strings.SplitN(rest, "/", 3); found && len(parts) == 3 {
			return filepath.Join(s.State, kind, parts[0], parts[1])
		}
	}
	return ""
}

// claimed reports whether a bundle lives, is known, is of another runtime, or is a leftover itself.
func (s *Scan) claimed(dir string, known Known) bool {
	n := Name{filepath.Base(filepath.Dir(dir)), strings.TrimPrefix(filepath.Base(dir), ".")}
	if known[n] || slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.Name == n }) {
		return true
	}
	return slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.dir == s.Root.Path(dir) && !b.bare })
}

// findStates finds state directories, with the cgroups that they name: nothing else ties a cgroup to this containerd.
func (s *Scan) findStates(known Known) (list []Leftover) {
	for _, st := range s.states {
		if known[st.Name] || slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.Name == st.Name }) ||
			slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.Name == st.Name }) {
			continue // whatever removes the bundle removes it
		}
		l := Leftover{
			Kind: States, Path: st.dir, Text: st.dir + ": containerd does not know the container",
			Mend: fmt.Sprintf("runc --root %s delete --force %s", quote(filepath.Dir(st.dir)), quote(st.ID)),
		}
		if st.procs > 0 {
			l.Caution = fmt.Sprintf("%d of its processes live, which this kills", st.procs)
		}
		list = append(list, l)
	}
	return list
}

func (s *Scan) findShims(known Known) (list []Leftover) {
	for _, sh := range s.shims {
		if !sh.ours || !sh.here || sh.address != s.Address || known[sh.Name] || s.hasBundle(sh) {
			continue
		}
		l := Leftover{
			Kind: Shims, Pid: sh.pid, Mend: fmt.Sprintf("kill -TERM %d", sh.pid),
			Text: fmt.Sprintf("the shim of %s in namespace %s, pid %d: its bundle is gone", sh.ID, sh.Namespace, sh.pid),
		}
		switch n, err := s.children(sh.pid); {
		case err != nil:
			l.Caution = fmt.Sprintf("whether it has containers cannot be seen: %v", err)
		case n > 0:
			l.Caution = fmt.Sprintf("it has %d processes of containers, which this stops", n)
		}
		list = append(list, l)
	}
	return list
}

// hasBundle reports whether there is a bundle that needs a shim, or may be: its own, or that of another container of
// its pod, which has the address of the shim.
func (s *Scan) hasBundle(sh shim) bool {
	sockets, err := s.listening(sh.pid)
	return err != nil || slices.ContainsFunc(s.bundles, func(b bundle) bool {
		return b.Name == sh.Name || b.socket != "" && slices.Contains(sockets, b.socket)
	})
}

// Take lists what may be a leftover. What is listed before containerd is asked was known to it then, or is one.
func Take(ctx context.Context, c Config) *Scan {
	s := &Scan{Config: c}
	s.State = c.Root.Resolve(c.State) // mount points have no symbolic links in them
	s.configured = c.State
	s.shims = s.scanShims()
	s.bundles = s.scanBundles(ctx)
	mounts, _ := s.Root.Mounts() // without them other checks fail
	for _, m := range mounts {
		if s.bundleOf(m.Mountpoint) != "" {
			s.mounts = append(s.mounts, m.Mountpoint)
		}
	}
	s.states = s.scanStates()
	s.sockets = s.scanSockets(ctx)
	return s
}

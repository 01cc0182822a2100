// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package leftover finds what dead shims left on a machine, and gives the commands that remove it. It removes nothing
// itself: package removal does.
//
// [Take] lists candidates, and [Scan.Find] decides with containerd's list which of them are leftovers. If that cannot
// be decided, it is not a leftover: a shim whose address is unknown may be alive. [Leftover.Keep] says why a leftover
// must not be removed automatically.
package leftover

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

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
	Caution string `json:"caution,omitempty"` // why somebody should look first; empty: nobody misses it
	Keep    string `json:"keep,omitempty"`    // why only a person should remove it; empty: a program may
	Fix     string `json:"fix"`               // the command that removes it
	Target  Target `json:"-"`
}

// Target is what a program has to know to remove a leftover.
type Target struct {
	Name
	Hidden  bool              // of a bundle: containerd has begun to remove it
	Binary  string            // of a bundle: the shim that made it, if it says so
	Bundles []string          // of a bundle: itself and the others of its pod, some of which may be gone
	States  []string          // state directories of the containers, some of which may be gone
	Mounts  []*mountinfo.Info // in the order in which they were made
	Started uint64            // of a shim: when its process began, in ticks

	Processes int // of mounts: of the container, which must end first
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
	configured string // State as configured, which labels have

	namespace   string // of containerd's mounts; empty: it cannot be seen
	hierarchies []machine.Hierarchy
	bundles     []bundle
	shims       []shim
	allMounts   []string          // mount points of the machine
	mounts      []*mountinfo.Info // those below bundles
	states      []state           // of all containers, including other containerds'
	sockets     []string          // on which nobody listens
}

// Find returns the leftovers. unknown says why it is not known what containerd has; nil if it is.
func (s *Scan) Find(known Known, unknown error) []Leftover {
	list := s.findBundles(known, unknown)
	for _, path := range s.sockets {
		list = append(list, Leftover{
			Kind: Sockets, Path: path, Text: path + ": nobody listens", Fix: "rm -- " + quote(path),
		})
	}
	if unknown != nil {
		return list
	}
	return slices.Concat(list, s.findMounts(known), s.findStates(known), s.findShims(known))
}

func (s *Scan) findBundles(known Known, unknown error) (list []Leftover) {
	isKnown := func(p part) bool { return known[p.Name] }
	for _, b := range s.bundles {
		if !b.ours || b.alive {
			continue
		}
		mounts, left := s.leftIn(b)
		l := Leftover{Kind: Bundles, Path: b.dir, Text: b.dir + ": its shim is dead" + left}
		l.Target = Target{Name: b.Name, Hidden: b.hidden, Binary: b.binary, Mounts: mounts}
		for _, p := range b.parts {
			l.Target.Bundles, l.Target.States = append(l.Target.Bundles, p.bundle), append(l.Target.States, p.state)
		}
		ctr := fmt.Sprintf("ctr -a %s -n %s", quote(s.Address), quote(b.Namespace))
		switch {
		case unknown != nil:
			l.Caution = "containerd, which alone knows whether it is still wanted, does not answer; " +
				"it removes the bundle when it starts"
			l.Fix = "systemctl start containerd"
		case b.hidden: // containerd began to remove it, and leaves alone what is hidden
			if known[b.Name] {
				l.Caution = "containerd knows a container of its name, which may be another"
			}
			l.Fix = umount(mounts) + "rm -r --one-file-system -- " + quote(b.dir)
		case known[b.Name]:
			l.Caution = "containerd still knows the container"
			l.Fix = fmt.Sprintf("%s task rm -f %s", ctr, quote(b.ID))
		case slices.ContainsFunc(b.parts, isKnown):
			l.Caution = "containerd still knows others of its pod"
			l.Fix = ctr + " task ls, and remove those of the pod"
		default:
			l.Fix = "systemctl restart containerd removes it, and ends no container that runs"
		}
		l.Keep = l.Caution
		l.keep(s.keepBundle(b)) // containerd would do no better
		list = append(list, l)
	}
	return list
}

// leftIn returns what is still there of the container of a bundle.
func (s *Scan) leftIn(b bundle) (mounts []*mountinfo.Info, text string) {
	for _, m := range s.mounts {
		if machine.Within(b.dir, s.Root.Path(m.Mountpoint)) {
			mounts = append(mounts, m)
		}
	}
	var parts []string
	if len(mounts) > 0 {
		parts = append(parts, fmt.Sprintf("mounts: %d", len(mounts)))
	}
	for _, st := range s.states {
		if st.Name != b.Name || !s.here(st) {
			continue
		}
		if pids, _ := st.pids(); len(pids) > 0 { // if they cannot be seen, that is why it is kept
			parts = append(parts, fmt.Sprintf("processes: %d", len(pids)))
		}
	}
	if parts == nil {
		return mounts, ""
	}
	return mounts, " (" + strings.Join(parts, ", ") + ")"
}

func (s *Scan) findMounts(known Known) (list []Leftover) {
	byBundle := map[string][]*mountinfo.Info{}
	var dirs []string
	for _, m := range s.mounts {
		dir := s.bundleOf(m.Mountpoint)
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
		l := Leftover{
			Kind: Mounts, Path: dir,
			Text: fmt.Sprintf("%s: nobody has this bundle, and there is mounted: %s", dir, strings.Join(points(mounts), ", ")),
			Fix:  strings.TrimSuffix(umount(mounts), " && "),
		}
		l.Target.Name, l.Target.Mounts = bundleName(dir), mounts
		l.keep(cmp.Or(s.keepLost(l.Target.Name), s.keepMounts(s.Root.Path(dir))))
		for _, st := range s.states {
			if st.Name != l.Target.Name || !s.here(st) {
				continue
			}
			if pids, err := st.pids(); len(pids) > 0 || err != nil {
				l.Target.Processes = len(pids)
				if l.Keep == "" {
					l.keep(s.foreign(st)) // the processes go first, unless they stay
				}
			}
		}
		list = append(list, l)
	}
	return list
}

// bundleName returns the name of the container of a bundle.
func bundleName(dir string) Name {
	return Name{filepath.Base(filepath.Dir(dir)), strings.TrimPrefix(filepath.Base(dir), ".")}
}

// bundleOf returns the bundle to which a mount point belongs, a path of the machine.
func (s *Scan) bundleOf(mount string) string {
	for _, kind := range bundleDirs {
		rest, found := strings.CutPrefix(mount, filepath.Join(s.State, kind)+"/")
		if parts := strings.SplitN(rest, "/", 3); found && len(parts) == 3 {
			return filepath.Join(s.State, kind, parts[0], parts[1])
		}
	}
	return ""
}

// claimed reports whether a bundle has a shim, is known, is of another runtime, or is a leftover itself.
func (s *Scan) claimed(dir string, known Known) bool {
	n := bundleName(dir)
	if known[n] || s.lives(n) {
		return true
	}
	return slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.dir == s.Root.Path(dir) && !b.bare })
}

// findStates finds state directories, with the cgroups that they name: nothing else ties a cgroup to this containerd.
func (s *Scan) findStates(known Known) (list []Leftover) {
	for _, st := range s.states {
		if !s.here(st) || known[st.Name] || s.lives(st.Name) ||
			slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.Name == st.Name && !b.bare }) {
			continue // whatever removes the bundle removes it
		}
		l := Leftover{
			Kind: States, Path: st.dir, Text: st.dir + ": containerd does not know the container",
			Fix:    fmt.Sprintf("runc --root %s delete --force %s", quote(filepath.Dir(st.dir)), quote(st.ID)),
			Target: Target{Name: st.Name, States: []string{st.dir}, Bundles: []string{bundlePath(s.State, st.Name)}},
		}
		p := part{st.Name, s.Root.Path(bundlePath(s.State, st.Name)), st.dir}
		l.keep(cmp.Or(s.keepLost(st.Name), s.keepState(p), s.keepDefault(st), s.keepMounts(p.bundle)))
		if pids, _ := st.pids(); l.Keep == "" && len(pids) > 0 { // if they cannot be seen, it is kept
			l.Caution = fmt.Sprintf("%d of its processes live, which this kills", len(pids))
		}
		list = append(list, l)
	}
	return list
}

func (s *Scan) findShims(known Known) (list []Leftover) {
	for _, sh := range s.shims {
		here := sh.sure && s.Root.Resolve(sh.address) == s.Root.Resolve(s.Address)
		if !sh.ours || !here || known[sh.Name] || s.hasBundle(sh) {
			continue
		}
		l := Leftover{
			Kind: Shims, Pid: sh.pid, Fix: fmt.Sprintf("kill -TERM %d", sh.pid),
			Text:   fmt.Sprintf("the shim of %s in namespace %s, pid %d: its bundle is gone", sh.ID, sh.Namespace, sh.pid),
			Target: Target{Name: sh.Name, Started: sh.started},
		}
		switch n, err := s.children(sh.pid); {
		case err != nil:
			l.Caution = fmt.Sprintf("whether it has containers cannot be seen: %v", err)
		case n > 0:
			l.Caution = fmt.Sprintf("it has %d processes of containers, which this stops", n)
		}
		l.Keep = l.Caution
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
	s.shims = s.scanShims(ctx)
	s.bundles = s.scanBundles(ctx)
	mounts, _ := s.Root.Mounts() // without them other checks fail
	for _, m := range mounts {
		s.allMounts = append(s.allMounts, m.Mountpoint)
		if s.bundleOf(m.Mountpoint) != "" {
			s.mounts = append(s.mounts, m)
		}
	}
	s.hierarchies, _, _ = s.Root.Hierarchies() // as above
	s.states = s.scanStates()
	s.sockets = s.scanSockets(ctx)
	return s
}

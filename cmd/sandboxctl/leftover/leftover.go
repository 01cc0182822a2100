// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package leftover finds what dead shims left on a machine, and gives the commands by which a person removes it. It
// changes nothing.
//
// [Take] lists candidates, and [Scan.Find] decides with containerd's list which of them are leftovers: what was on the
// machine before containerd was asked was known to it, or is one. If that cannot be decided, it is not a leftover: a
// shim whose address is unknown may be alive.
package leftover

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
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
	Caution string `json:"caution,omitempty"` // why somebody should look first; empty: nobody misses it
	Fix     string `json:"fix"`               // the command that removes it
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

	bundles []bundle
	shims   []shim
	mounts  []string // mount points in bundles
	states  []state
	sockets []string // on which nobody listens
}

// Take lists what may be a leftover.
func Take(ctx context.Context, c Config) *Scan {
	s := &Scan{Config: c, configured: c.State}
	s.State = c.Root.Resolve(c.State) // mount points have no symbolic links in them
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
	for _, b := range s.bundles {
		if !b.ours || b.alive {
			continue
		}
		mounts := slices.DeleteFunc(slices.Clone(s.mounts), func(m string) bool {
			return !machine.Within(b.dir, s.Root.Path(m))
		})
		l := Leftover{Kind: Bundles, Path: b.dir, Text: b.dir + ": its shim is dead"}
		if pids := s.pidsOf(b.Name); len(mounts)+pids > 0 {
			l.Text += fmt.Sprintf(" (mounts: %d, processes: %d)", len(mounts), pids)
		}
		switch {
		case unknown != nil:
			l.Caution = "containerd, which alone knows whether it is still wanted, does not answer; " +
				"it removes the bundle when it starts"
			l.Fix = "systemctl start containerd"
		case b.hidden: // containerd began to remove it, and leaves alone what is hidden
			l.Fix = "rm -r --one-file-system -- " + quote(b.dir)
			if len(mounts) > 0 {
				l.Fix = umount(mounts) + " && " + l.Fix
			}
		case known[b.Name]:
			l.Caution = "containerd still knows the container"
			l.Fix = fmt.Sprintf("ctr -a %s -n %s task rm -f %s", quote(s.Address), quote(b.Namespace), quote(b.ID))
		default:
			l.Fix = "systemctl restart containerd removes it, and ends no container that runs"
		}
		list = append(list, l)
	}
	return list
}

func (s *Scan) findMounts(known Known) (list []Leftover) {
	byBundle := map[string][]string{}
	var dirs []string
	for _, m := range s.mounts {
		dir := s.bundleOf(m)
		if s.claimed(bundleName(dir), known) {
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
			Kind: Mounts, Path: dir, Fix: umount(mounts),
			Text: fmt.Sprintf("%s: nobody has this bundle, and there is mounted: %s", dir, strings.Join(mounts, ", ")),
		}
		if n := s.pidsOf(bundleName(dir)); n > 0 {
			l.Caution = fmt.Sprintf("%d processes of the container live, which may use it", n)
		}
		list = append(list, l)
	}
	return list
}

// findStates finds state directories, with the cgroups that they name: nothing else ties a cgroup to this containerd.
func (s *Scan) findStates(known Known) (list []Leftover) {
	for _, st := range s.states {
		if s.claimed(st.Name, known) || slices.ContainsFunc(st.pids, s.hasShim) {
			continue // whatever removes the bundle removes it
		}
		l := Leftover{
			Kind: States, Path: st.dir, Text: st.dir + ": containerd does not know the container",
			Fix: fmt.Sprintf("runc --root %s delete --force %s", quote(filepath.Dir(st.dir)), quote(st.ID)),
		}
		if len(st.pids) > 0 {
			l.Caution = fmt.Sprintf("%d processes live in its cgroups, which this kills", len(st.pids))
		}
		list = append(list, l)
	}
	return list
}

func (s *Scan) findShims(known Known) (list []Leftover) {
	for _, sh := range s.shims {
		if !sh.ours || known[sh.Name] || !s.started(sh) ||
			slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.Name == sh.Name || b.peer == sh.pid }) {
			continue
		}
		l := Leftover{
			Kind: Shims, Pid: sh.pid, Fix: fmt.Sprintf("kill -TERM %d", sh.pid),
			Text: fmt.Sprintf("the shim of %s in namespace %s, pid %d: its bundle is gone", sh.ID, sh.Namespace, sh.pid),
		}
		if n := s.children(sh.pid); n > 0 {
			l.Caution = fmt.Sprintf("it has %d processes of containers, which this stops", n)
		}
		list = append(list, l)
	}
	return list
}

// Outdated names this project's shims of containerd that do not run the installed program.
func (s *Scan) Outdated() (names []string) {
	for _, sh := range s.shims {
		if sh.ours && s.started(sh) && s.Root.Outdated(sh.pid) {
			names = append(names, fmt.Sprintf("%s in namespace %s, pid %d", sh.ID, sh.Namespace, sh.pid))
		}
	}
	return names
}

// started reports whether this containerd has started a shim.
func (s *Scan) started(sh shim) bool { return s.Root.Resolve(sh.address) == s.Root.Resolve(s.Address) }

// pidsOf returns how many processes a container has.
func (s *Scan) pidsOf(n Name) int {
	i := slices.IndexFunc(s.states, func(st state) bool { return st.Name == n })
	if i < 0 {
		return 0
	}
	return len(s.states[i].pids)
}

// claimed reports whether a container or a pod is known, has a shim, or has a bundle with files in it.
func (s *Scan) claimed(n Name, known Known) bool {
	return known[n] || slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.Name == n }) ||
		slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.Name == n && !b.bare })
}

var harmless = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// quote quotes a word for a shell: somebody copies the command, and containers choose names of mount points.
func quote(word string) string {
	if harmless.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// umount returns the command that unmounts all mount points, the last first.
func umount(mounts []string) string {
	words := []string{"umount", "--"}
	for _, m := range slices.Backward(mounts) {
		words = append(words, quote(m))
	}
	return strings.Join(words, " ")
}

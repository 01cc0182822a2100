// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/options"
)

// mountDirs are where shims mount something in a bundle.
var mountDirs = []string{"rootfs", "etc", "shm"}

// hold is a reason why a program must not remove a leftover, and what a person does about that. It is never a command
// that removes or ends what the leftover is kept for.
type hold struct{ why, fix string }

// again is what to do when what holds a leftover is gone.
const again = "then run this again"

func holdf(fix, why string, args ...any) hold { return hold{fmt.Sprintf(why, args...), fix} }

// keep sets why a leftover is kept, unless nothing holds it.
func (l *Leftover) keep(h hold) {
	if h != (hold{}) {
		l.Keep, l.Fix = h.why, h.fix
	}
}

// keepBundle returns why a program must not remove a bundle. The delete command of the shim ends all containers of the
// pod, so that each must be dead.
func (s *Scan) keepBundle(b bundle) hold {
	list := quote(filepath.Join(b.dir, indexFile)) + ", or what " + indexLink + " leads to"
	if b.doubt != "" {
		return hold{b.doubt, "look into " + list + ", and fix it, " + again}
	}
	for _, p := range b.parts {
		if !s.isBundle(p.bundle) {
			return holdf("look into "+list+", and fix it, "+again, "the list of its pod names %s, which is no bundle", p.bundle)
		}
		if sh := s.shimOf(p.Name); sh != nil {
			return holdf(sh.wait(), "%s, lives", sh)
		}
		if h := cmp.Or(s.keepMounts(p.bundle), s.keepState(p)); h != (hold{}) {
			return h
		}
	}
	return hold{}
}

// removeState returns how to remove a state directory by hand.
func removeState(dir string) string {
	return "when no process of the container runs: rm -r --one-file-system -- " + quote(dir) + ", " + again
}

// keepState returns why what a state directory names must not be removed. There may be no such directory. All
// containerds of a machine may have theirs in the same place.
func (s *Scan) keepState(p part) hold {
	i := slices.IndexFunc(s.states, func(st state) bool { return st.dir == p.state })
	if i < 0 {
		if _, err := os.Lstat(p.state); errors.Is(err, fs.ErrNotExist) {
			return hold{}
		}
		return holdf(removeState(p.state),
			"%s does not say which cgroups the container had: its creation was not finished", p.state)
	}
	st := s.states[i]
	if st.bundle == "" || !s.sameBundle(s.Root.Path(st.bundle), p.bundle) {
		return holdf(fmt.Sprintf("when who made %s has removed it, run this again", quote(p.state)),
			"its state directory is of a container whose bundle was %q, where this containerd has none of it", st.bundle)
	}
	return cmp.Or(s.keepMountsIn(p.state, func(string) bool { return false }), s.foreign(st))
}

// keepDefault keeps a state directory that is elsewhere than the delete command looks for one without a bundle.
func (s *Scan) keepDefault(st state) hold {
	if st.dir == s.Root.Path(options.DefaultRoot, st.Namespace, st.ID) {
		return hold{}
	}
	return holdf("remove the bundle of its pod, "+again,
		"its own bundle, which says that its state directory is not below %s, is gone", options.DefaultRoot)
}

// sameBundle reports whether two paths are those of one bundle, with containerd's state directory as it is configured
// or without symbolic links, and hidden or not.
func (s *Scan) sameBundle(a, b string) bool {
	plain := func(path string) string {
		if machine.Within(s.Root.Path(s.configured), path) {
			path = s.Root.Path(s.State, strings.TrimPrefix(path, s.Root.Path(s.configured)))
		}
		return filepath.Join(filepath.Dir(path), strings.TrimPrefix(filepath.Base(path), "."))
	}
	return plain(a) == plain(b)
}

// keepMounts returns which mount in a bundle was not made by a shim.
func (s *Scan) keepMounts(bundle string) hold {
	return s.keepMountsIn(bundle, func(at string) bool {
		return slices.ContainsFunc(mountDirs, func(dir string) bool { return machine.Within(filepath.Join(bundle, dir), at) })
	})
}

func (s *Scan) keepMountsIn(dir string, fine func(at string) bool) hold {
	for _, m := range s.allMounts {
		if at := s.Root.Path(m); machine.Within(dir, at) && !fine(at) {
			return holdf("umount -- "+quote(m)+" first, "+again, "%s is mounted there, and not by a shim", m)
		}
	}
	return hold{}
}

// shimOf finds the shim that was started for a container or a pod, or what may be it.
func (s *Scan) shimOf(n Name) *shim {
	for _, fits := range []func(sh shim) bool{
		func(sh shim) bool { return sh.Name == n && sh.sure },
		func(sh shim) bool { return sh.Name == n },
		func(sh shim) bool { return sh.hidden },
	} {
		if i := slices.IndexFunc(s.shims, fits); i >= 0 {
			return &s.shims[i]
		}
	}
	return nil
}

// lives reports whether a container or a pod certainly has a running shim of its own.
func (s *Scan) lives(n Name) bool {
	sh := s.shimOf(n)
	return sh != nil && sh.sure
}

// keepLost returns why a container whose bundle is gone may still have a shim: that of its pod.
func (s *Scan) keepLost(n Name) hold {
	if sh := s.shimOf(n); sh != nil {
		return holdf(sh.wait(), "%s, lives", sh)
	}
	for _, b := range s.bundles {
		if b.alive && slices.ContainsFunc(b.parts, func(p part) bool { return p.Name == n }) {
			fix := fmt.Sprintf("when the shim of %s has ended, run this again", b.ID)
			return holdf(fix, "the shim of %s lives and has it", b.ID)
		}
	}
	for _, sh := range s.shims {
		named := slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.ours && b.Name == sh.Name && b.doubt == "" })
		ours := sh.here && (sh.address == "" || s.Root.Resolve(sh.address) == s.Root.Resolve(s.Address))
		if ours && sh.Namespace == n.Namespace && !named {
			return holdf(sh.wait(), "%s, has no bundle that says which containers it has", sh)
		}
	}
	return hold{}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

// mountDirs are where shims mount something in a bundle.
var mountDirs = []string{"rootfs", "etc", "shm"}

// keepBundle says why a bundle is not to be removed by a program; empty: it may be. The delete command of the shim ends
// all containers of the pod, so that each must be one that is dead.
func (s *Scan) keepBundle(b bundle) string {
	if b.doubt != "" {
		return b.doubt
	}
	for _, p := range b.parts {
		if !s.isBundle(p.bundle) {
			return fmt.Sprintf("the list of its pod names %s, which is no bundle", p.bundle)
		}
		if sh := s.shimOf(p.Name); sh != nil {
			return fmt.Sprintf("the shim of %s, pid %d, lives", p.ID, sh.pid)
		}
		if why := s.keepMounts(p.bundle); why != "" {
			return why
		}
		if why := s.keepState(p); why != "" {
			return why
		}
	}
	return ""
}

// keepState says why what a state directory names is not to be removed. There may be no such directory.
func (s *Scan) keepState(p part) string {
	i := slices.IndexFunc(s.states, func(st state) bool { return st.dir == p.state })
	if i < 0 {
		if _, err := os.Lstat(p.state); errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		return fmt.Sprintf("%s does not say which cgroups the container had: its creation was not finished", p.state)
	}
	if why := s.keepMountsIn(p.state, func(string) bool { return false }); why != "" {
		return why
	}
	return s.foreign(s.states[i])
}

// keepMounts says which mount in a bundle was not made by a shim.
func (s *Scan) keepMounts(bundle string) string {
	return s.keepMountsIn(bundle, func(at string) bool {
		return slices.ContainsFunc(mountDirs, func(dir string) bool { return machine.Within(filepath.Join(bundle, dir), at) })
	})
}

func (s *Scan) keepMountsIn(dir string, fine func(at string) bool) string {
	for _, m := range s.allMounts {
		if at := s.Root.Path(m); machine.Within(dir, at) && !fine(at) {
			return fmt.Sprintf("%s is mounted there, and not by a shim", m)
		}
	}
	return ""
}

// shimOf finds the shim that was started for a container or a pod.
func (s *Scan) shimOf(n Name) *shim {
	if i := slices.IndexFunc(s.shims, func(sh shim) bool { return sh.Name == n }); i >= 0 {
		return &s.shims[i]
	}
	return nil
}

// keepLost says why a container whose bundle is gone may still have a shim: that of its pod.
func (s *Scan) keepLost(n Name) string {
	for _, b := range s.bundles {
		if b.alive && slices.ContainsFunc(b.parts, func(p part) bool { return p.Name == n }) {
			return fmt.Sprintf("the shim of %s lives and has it", b.ID)
		}
	}
	for _, sh := range s.shims {
		named := slices.ContainsFunc(s.bundles, func(b bundle) bool { return b.Name == sh.Name && b.doubt == "" })
		ours := sh.here && (sh.address == "" || s.Root.Resolve(sh.address) == s.Root.Resolve(s.Address))
		if ours && sh.Namespace == n.Namespace && !named {
			return fmt.Sprintf("the shim of %s, pid %d, has no bundle that says which containers it has", sh.ID, sh.pid)
		}
	}
	return ""
}

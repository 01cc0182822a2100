// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
)

// pods groups the containers.
func (n *Node) pods() []Pod {
	byKey := map[key]*Pod{}
	for _, s := range n.sandboxes {
		byKey[s.key] = &Pod{
			Namespace: s.namespace, ID: s.id, Name: s.pod, Sandbox: true, Shim: s.shim.of(s.runtime),
			Containers: []Container{}, // in JSON a list, too, and not null
		}
	}
	for _, c := range n.containers {
		k := key{c.Namespace, cmp.Or(c.sandboxID, c.ID)}
		p := byKey[k]
		if p == nil {
			p = &Pod{Namespace: k.namespace, ID: k.id, Sandbox: c.sandboxID != "", Shim: c.shim.of(c.Runtime)}
			byKey[k] = p
		}
		p.Name = cmp.Or(p.Name, c.pod)
		if p.Shim.Pid == 0 && c.shim != nil {
			p.Shim = c.shim.Shim
		}
		p.Containers = append(p.Containers, c.Container)
	}
	pods := make([]Pod, 0, len(byKey))
	for _, p := range byKey {
		p.Name = cmp.Or(p.Name, p.ID)
		slices.SortFunc(p.Containers, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
		pods = append(pods, *p)
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name+"\x00"+a.ID, b.Namespace+"\x00"+b.Name+"\x00"+b.ID)
	})
	return pods
}

// of may be called for nil.
func (s *shimState) of(runtime string) Shim {
	if s == nil {
		return Shim{Runtime: runtime}
	}
	return s.Shim
}

// runtimeName returns the name by which people know a runtime: the path of a binary ends in it.
func runtimeName(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Base(name)
	}
	return name
}

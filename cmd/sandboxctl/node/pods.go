// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"slices"
	"strings"
)

// pods groups the containers.
func (n *Node) pods() []Pod {
	byKey := map[key]*Pod{}
	for k, s := range n.sandboxes {
		byKey[k] = &Pod{
			Namespace: k.namespace, ID: k.id, Name: s.pod, Sandbox: true, Shim: n.shimOf(s.address, s.runtime),
			Containers: []Container{}, // in JSON a list, too, and not null
		}
	}
	for _, c := range n.containers {
		k := key{c.Namespace, c.ID}
		if c.sandboxID != "" {
			k.id = c.sandboxID
		}
		p := byKey[k]
		if p == nil {
			p = &Pod{Namespace: k.namespace, ID: k.id, Sandbox: c.sandboxID != "", Shim: n.shimOf(c.address, c.Runtime)}
			byKey[k] = p
		}
		if p.Name == "" {
			p.Name = c.pod
		}
		if p.Shim.Pid == 0 && c.address != "" {
			p.Shim = n.shimOf(c.address, c.Runtime)
		}
		p.Containers = append(p.Containers, c.Container)
	}
	pods := make([]Pod, 0, len(byKey))
	for _, p := range byKey {
		if p.Name == "" {
			p.Name = p.ID
		}
		slices.SortFunc(p.Containers, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
		pods = append(pods, *p)
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name+"\x00"+a.ID, b.Namespace+"\x00"+b.Name+"\x00"+b.ID)
	})
	return pods
}

func (n *Node) shimOf(address, runtime string) Shim {
	if known := n.shims[address]; known != nil {
		return known.Shim
	}
	return Shim{Runtime: runtime, Address: address}
}

// runtimeName returns the name by which people know a runtime: the path of a binary ends in it.
func runtimeName(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Base(name)
	}
	return name
}

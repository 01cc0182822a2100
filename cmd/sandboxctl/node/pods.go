// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// pods groups the containers.
func (n *Node) pods() []Pod {
	byKey := map[key]*Pod{}
	for k, s := range n.sandboxes {
		byKey[k] = &Pod{Namespace: k.namespace, ID: k.id, Name: s.pod, Sandbox: true, Shim: n.shimOf(s.address, s.runtime)}
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

// ShimAddress is where a shim of this project listens.
type ShimAddress struct {
	shim.Address
	Namespace string // of its containers
}

// Shims returns the shims of this project that answer, as of the last snapshot.
func (n *Node) Shims() []ShimAddress {
	var all []ShimAddress
	for _, known := range n.shims {
		if !known.other && known.Error == "" {
			all = append(all, ShimAddress{known.address, known.answer.Shim.Namespace})
		}
	}
	slices.SortFunc(all, func(a, b ShimAddress) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// Silent returns the sockets of shims that did not answer.
func (n *Node) Silent() map[string]bool {
	silent := map[string]bool{}
	for path, known := range n.shims {
		if known.Error != "" {
			silent[path] = true
		}
	}
	return silent
}

// runtimeName is a runtime as people know it: the path of a binary ends in its name.
func runtimeName(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Base(name)
	}
	return name
}

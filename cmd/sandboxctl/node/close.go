// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

// Close ends the connections.
func (n *Node) Close() error {
	n.watch.close()
	n.closeGroups()
	n.closeShims()
	return n.conn.Close()
}

// closeGroups closes the files of all containers. They are opened again when they are read.
func (n *Node) closeGroups() {
	for _, c := range n.containers {
		c.group.Close()
	}
}

func (n *Node) closeShims() {
	for _, known := range n.shims {
		known.close()
	}
}

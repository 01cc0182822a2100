// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package node tells what the containers of one containerd are and use: it asks containerd which there are, their shims
// what they know, and reads the cgroups itself, which costs neither of them anything.
//
// A [Node] may be asked once, or once a second. Which containers there are it asks again only when containerd tells an
// event, and otherwise once in [refreshAfter].
package node

import (
	"context"
	"errors"
	"time"
)

// Config says which containerd.
type Config struct {
	Address   string        // socket of containerd
	State     string        // its state directory
	Namespace string        // of containers; empty: all
	Timeout   time.Duration // for containerd and for each shim: one that hangs delays an answer by that
}

// Node is a connection to a containerd and its shims. Its methods are for one goroutine.
type Node struct {
	config Config
}

// Open connects to containerd.
func Open(ctx context.Context, c Config) (*Node, error) {
	return nil, errors.ErrUnsupported
}

// Close ends the connections.
func (n *Node) Close() error { return nil }

// Snapshot asks and reads. What one container or shim does not tell is in its Error; an error is that of containerd.
func (n *Node) Snapshot(ctx context.Context) (*Snapshot, error) { return nil, errors.ErrUnsupported }

// Processes lists the processes of a container in the order of their pids.
func (n *Node) Processes(ctx context.Context, namespace, id string) ([]Process, error) {
	return nil, errors.ErrUnsupported
}

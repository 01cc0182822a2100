// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package types stands in for the package of this name in github.com/containerd/containerd/api where the program is built
// (docs/decisions/0012-own-structs-for-messages.md). It has what containerd's mount package wants of it, for functions that we do not call.
package types

// Mount has the fields of containerd.types.Mount.
type Mount struct {
	Type    string
	Source  string
	Target  string
	Options []string
}

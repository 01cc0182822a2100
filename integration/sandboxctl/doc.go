// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package sandboxctl tests the operator's tool, sandboxctl, with a real containerd and shims in all states. The tool is
// the binary that SANDBOXCTL_BINARY names, or is built from the tree.
package sandboxctl

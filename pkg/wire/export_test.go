// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package wire

// Known tells whether m has a table.
func Known(m any) bool {
	_, t := lookUp(m)
	return t != nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package nsholder

// code is nothing where the program is not written for the processor: Start is errdefs.ErrNotImplemented there.
func code() (program []byte, entry uintptr) { return nil, 0 }

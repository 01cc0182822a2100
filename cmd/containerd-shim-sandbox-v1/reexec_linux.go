// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

// libcontainer runs this program again with the argument "init" as the first
// stage of every container process.
import _ "sandbox.internal/shim/pkg/ociruntime/initreexec"

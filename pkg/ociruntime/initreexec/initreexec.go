// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package initreexec lets libcontainer run this program again as the first stage of a container's init. A program that
// uses pkg/ociruntime imports it for its effect. That stage must run before anything else in the program, which is why
// this package has an init function.
package initreexec

import (
	"os"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins the namespaces before the Go runtime starts
)

func init() {
	if len(os.Args) > 1 && os.Args[1] == "init" {
		libcontainer.Init() // does not return
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package initreexec lets libcontainer run this program again as the first stage
// of a container process. A program that uses pkg/ociruntime imports it for its
// effect; it has to come before anything that the program itself does, which is
// why it is the one package with an init function.
package initreexec

// #include "join.h"
import "C"

import (
	"os"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins the namespaces before the Go runtime starts
)

// What the first stage takes (join.h): a request of RequestMax bytes at most, which begins with one of the letters.
const (
	RequestMax = C.REQUEST_MAX
	Make       = C.MAKE
	Enter      = C.ENTER
)

func init() {
	if len(os.Args) > 1 && os.Args[1] == "init" {
		libcontainer.Init() // does not return
	}
}

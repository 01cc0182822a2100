// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-sandbox-v1 is a containerd shim v2 runtime (io.containerd.sandbox.v1). It is one binary in
// four roles, told apart by its arguments: `start` becomes the daemon or joins the pod's, `delete` cleans up after a
// dead daemon, -info and -v describe the runtime, and without an action it is a daemon on the socket that -socket names.
//
// This package holds arguments, help and what joins the other packages (wire.go). reexec_linux.go is libcontainer's way
// back in. Nothing here ticks: an idle shim is not woken by this package.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, serve))
}

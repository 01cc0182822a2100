// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-sandbox-v1 is a containerd shim v2 runtime (io.containerd.sandbox.v1). It is one binary in
// four roles, told apart by its arguments: `start` becomes the daemon or joins the pod's, `delete` cleans up after a
// dead daemon, -info and -v describe the runtime, and without an action it is a daemon on a socket that is named.
//
// This package holds the outer shell: argv, the bootstrap protocol of every containerd in use, sockets, the daemon's
// set-up. wire.go joins the packages that do the work; reexec_linux.go is libcontainer's way back in.
//
// Goroutines: the daemon has one for signals, ended and joined by runDaemon. Nothing here ticks: an idle shim is not
// woken by this package.
// Locks: the socket folder's flock is held over a few system calls only, never over a fork or an RPC.
//
// Promises: start writes its answer to stdout and nothing else anywhere, since containerd reads stdout and stderr as
// one stream; when start fails it leaves no daemon and no socket, and a daemon that fails leaves no socket either. Two
// starts at once give one daemon.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, serve))
}

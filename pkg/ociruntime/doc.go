// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package ociruntime runs containers with libcontainer, the library of runc, in the shim's own process. It implements
// process.Runtime. Only this package and those below it import libcontainer, whose interface is not stable
// (docs/decisions/0001).
//
// The state directory of a container is libcontainer's own, so "runc --root ROOT list" and runc's other commands work
// on these containers.
//
// libcontainer starts the first stage of a container's process by running this program again with the argument "init",
// so the program must import [sandbox.internal/shim/pkg/ociruntime/initreexec]. It runs a sealed copy of the program,
// so that a container cannot write to the shim's executable (CVE-2019-5736). Inits and execs are started by
// pkg/launcher if that supports what they ask for (docs/decisions/0004, 0015).
//
// Processes that either starts are children of the shim. The reaper (pkg/reaper) is suspended around every call that
// starts some, because the callee waits for the short-lived ones, and only it knows which these are.
package ociruntime

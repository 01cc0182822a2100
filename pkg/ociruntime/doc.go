// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package ociruntime runs containers with libcontainer, the library of runc, in the
// shim's own process. It implements process.RuntimeContainer and is the only package that
// imports libcontainer: its interface is not stable (docs/decisions/0001).
//
// The state directory of a container is libcontainer's own, so that
// "runc --root ROOT list" and its other commands work on our containers.
//
// libcontainer starts the first stage of a container process by running this
// program again with the argument "init": the program must import
// [sandbox.internal/shim/pkg/ociruntime/initreexec]. It runs it from a sealed copy, so
// that a container cannot write to the shim's executable (CVE-2019-5736). Execs
// are started by pkg/ociruntime/launch where it covers what they ask for
// (docs/decisions/0004).
//
// Processes that either starts are children of the shim. Around every call that
// starts some the reaper is held off (pkg/reaper), because only the callee
// knows, and waits for, the short-lived ones.
package ociruntime

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package harness is what all integration tests stand on: the programs under test, a private containerd, an image that
// needs no registry, waiting without sleeping, and the check that a test left nothing behind.
//
// The runtime under test is io.containerd.sandbox.v1 with the binary that SHIM_BINARY names. SHIM_TEST_RUNTIME names
// another, io.containerd.runc.v2 say: the same tests then run against that shim. A test that fails on both is wrong
// itself; one that fails on one of them shows a difference. Tests of what only this project promises call [OursOnly].
//
// A Containerd owns the containerd process it started and one goroutine that waits for it; Stop and Kill join both.
package harness

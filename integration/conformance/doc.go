// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command conformance runs the part of containerd's own client tests that reaches a shim, against this shim and beside
// it against the runc shim, and prints the outcomes side by side. It fails when a test fails here that passes there.
//
// The tests are compiled from the containerd that go.mod pins, unchanged. They expect a machine of their own: they
// signal every containerd, use fixed paths, and pull from public registries. So each run of them gets PID, mount and
// network namespaces, in which this program is the first process, the directories they write to are fresh, and
// images.go answers for the registries. What a test leaves behind ends with the namespaces. Cgroups alone are the
// machine's; the program refuses to start when an earlier run still has processes there, and removes its groups at the
// end.
//
// A test at which the suite hangs or dies counts as failed, and the tests that had no turn run in a further round. So
// does a test that fails and is known to race, whatever the shim does.
//
// Everything is sequential but for the registry, whose goroutine ends with the process inside.
package main

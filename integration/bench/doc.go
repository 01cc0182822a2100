// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures this shim beside the runc shim, through containerd's
// client and a private containerd.
//
// All runtimes are measured in one run, in turns: a round measures the first,
// then the others, and the next round begins with another one. So a noisy
// machine is noisy for all of them, and the ratio says more than the figures.
// Nothing is asserted; the table is for people, -json for comparing runs.
//
// It owns everything it starts and ends it before it returns, also when it is
// interrupted.
package main

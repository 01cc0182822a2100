// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures this shim beside the runc shim, with runc and, where
// it is installed, with crun, through containerd's client.
//
// All runtimes are measured in one run, in turns: a round measures the first,
// then the others, and the next round begins with another one. So a noisy
// machine is noisy for all of them, and the ratio says more than the figures.
// What is measured, in groups of rows, is the list in groups.go. -rows chooses.
//
// Each runtime has a private containerd, so that the containers of one are
// nothing to the others. Nothing is asserted. The table says which of the
// project's targets are met; -json keeps every sample; -write puts the table
// into docs/performance.md, and with -from does so from a JSON file.
//
// It owns everything it starts, ends it before it returns, also when it is
// interrupted, and fails if anything is left behind.
package main

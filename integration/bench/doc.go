// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures this shim beside the runc shim, with runc and, where it is installed, with crun, through
// containerd's client. All are measured in one run, in turns, so that a noisy machine is noisy for all of them: the
// ratio says more than the figures. The list in groups.go is what is measured; -rows chooses.
//
// Each runtime has a private containerd. Nothing is asserted: the table says which targets are met. -json keeps every
// sample; -write puts the table into docs/performance.md, and with -from does so from a JSON file.
//
// It owns everything it starts, ends it before it returns, also when it is interrupted, and fails if anything is left.
package main

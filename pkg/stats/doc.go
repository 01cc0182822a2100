// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stats reads the metrics of a cgroup as the messages that containerd knows: io.containerd.cgroups.v1.Metrics on
// v1 and hybrid, io.containerd.cgroups.v2.Metrics on v2. The name is part of the answer: containerd's
// collectors and CRI branch on it. Each controller has a file of its own here; a number of the message is found by its
// name there. The figures are those of containerd/cgroups, with which the tests compare them on live cgroups; where that is
// wrong the tests say so.
//
// # Values
//
//   - No limit: on v2 the largest number of the field's type; on v1 0 for pids, and for memory what the kernel writes, the
//     largest number of bytes in whole pages.
//   - A controller that the cgroup does not have is left out of the message, and so is pressure that is not accounted. On
//     v1 the CPU message has both parts when cpu or cpuacct is there, and memory all four entries: consumers rely on it.
//   - A number that the kernel does not have is 0: memory.peak before Linux 5.19, memory.swap.* without swap accounting,
//     usage and limits of the root.
//   - Keys and lines that are not known are passed over, since kernels add some. What is not a number where one is known to
//     be is errdefs.ErrInternal and names file and key: a wrong figure would be worse than none.
//
// The messages have no place for memory.events.local, the other keys of memory.stat, zswap, the events and peak of pids,
// bytes and operations that were discarded, rsvd of hugetlb, bursts on v1, and misc. Their fields for networks and for
// tasks by state (taskstats) are not about files of a cgroup, and stay empty as with the runc shim.
//
// # Cost
//
// A reader keeps its files open between calls, some 30 on v1 and 25 on v2, from the first Read until Close, or until a Read
// finds the cgroup gone. Opening takes six times as long as reading; an open file takes a page of the kernel's memory. The
// kernel makes the text anew at each read from the start, and answers ENODEV when the cgroup or the controller went; the
// files are then opened again, once. Controllers that are added to a v2 cgroup are noticed by its cgroup.controllers.
//
// # Concurrency
//
// The package has no goroutine. Calls of Read that meet are one: those that come while one is under way get its answer.
// Nothing is kept for later calls. Reader.mu is held while files are read or closed; shared.mu only guards who waits for
// whom, and neither is taken under the other.
package stats

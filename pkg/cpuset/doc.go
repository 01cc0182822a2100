// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cpuset keeps the CPUs, and if asked the memory nodes, of containers those of a source cgroup: for as long as a
// container lives, also when the source changes. It is for cgroup v2; on v1 the caller refuses.
//
// # Precedence
//
// A cpuset that is set for one container wins over one that is copied: a cpuset in the specification or by Task.Update (the
// caller does not Add it, or Pins it), then the annotation that names a source, then the runtime option that names one.
//
// # What is copied, and when not
//
// The source's cpuset.cpus.effective is what it has; its cpuset.cpus is what somebody asked for, with CPUs that are offline,
// that an ancestor denies or that a partition took. Of that the destination gets what its own parent has as well. It could
// not use the rest, and asking for CPUs of a partition next to it makes that partition invalid on kernels without commit
// 2a3602030d80.
//
// The destination keeps what it has, and State tells why, while the source is gone, its list is empty or unreadable, none of
// its CPUs is usable (the kernel then lends it those of its parent, which are no assignment) or none is with the destination's
// parent, and while the destination is a partition root. A source that was made again and has no list yet is given a second,
// since its maker writes the list after mkdir. When Add meets one of these it is an error.
//
// Only the container's own cgroup is written. Those nested in it are masked by the kernel, except before Linux 5.17, where
// it refuses a list without the CPUs of nested cgroups: there they are narrowed first. Parents are never written.
//
// # What the kernel tells
//
// inotify fires for a control file that a process writes, so cpuset.cpus and cpuset.cpus.partition of the source, of the
// destination and of what is above them are watched, and the directory in which the source is. It does not fire when the kernel
// computes a value anew: hot-plug of a CPU, a partition made next to the source. For these all is read again every 1 to 3
// seconds, which is the whole cost of being idle: some ten small files for each container. Where a user's inotify instances
// are used up, the same serves for all.
//
// # Goroutines and locks
//
// A Reconciler has one goroutine, from its first container to its last or to Stop; Remove and Stop join it. turn is taken for
// all that reads or writes cgroups, so after Remove, Pin or Stop nothing is written any more. mu guards what State shows and is
// held over nothing that waits. Order: turn, then mu.
package cpuset

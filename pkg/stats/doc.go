// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stats reads the metrics of a cgroup as the messages that containerd knows: io.containerd.cgroups.v1.Metrics on
// v1 and hybrid, io.containerd.cgroups.v2.Metrics on v2. Their Go types are part of what is answered: containerd's
// collectors and CRI branch on them.
//
// The package has no goroutine and keeps no file open. The files are read by containerd/cgroups, one controller after the
// other. Its v1 loader is passed over: it looks for hierarchies at /sys/fs/cgroup alone and reads mountinfo for each cgroup.
package stats

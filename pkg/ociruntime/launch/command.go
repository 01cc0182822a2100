// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"

	"golang.org/x/sys/unix"
)

// Command is a process that is to run in a container. No string may contain a zero byte, and the environment has each
// name once.
type Command struct {
	Args []string
	Env  []string // HOME is added when FindHome is set
	Cwd  string   // "" for the root

	// FindHome asks for HOME from the container's /etc/passwd, "/" where it does not tell.
	FindHome bool

	Stdio    [3]*os.File // with a Terminal only the last, which may be nil: stderr beside it
	Terminal *Terminal   // nil for none

	Init       *os.File // pidfd of the container's init
	Namespaces int      // those to join (CLONE_NEW… of clone(2)); the mount namespace is among them
	// Unified is the container's cgroup in the v2 hierarchy, "" for none.
	Unified string
	// moves has the process move into Unified, for which it waits a grace period of RCU, instead of being born there.
	moves bool
	// Tasks are its cgroups in the v1 hierarchies.
	Tasks []string
	// Freezer is that of Tasks whose processes may be frozen, "" for none.
	Freezer string

	OOMScoreAdj     *int
	InitialAffinity []byte // CPUs to begin with, as sched_setaffinity(2) takes them; nil for no matter which
	FinalAffinity   []byte // CPUs once the process is in its cgroups; nil to leave them
	Keyring         string // name of the session keyring, "" to keep the shim's

	NoNewPrivileges bool
	Umask           *uint32
	Scheduler       *unix.SchedAttr
	IOPriority      *int // as ioprio_set(2) takes it
	Rlimits         []Rlimit
	Filter          *Filter

	UID, GID     int
	SetGroups    bool // false where the user namespace denies setgroups(2)
	Groups       []int
	Capabilities *Capabilities // nil to leave them
}

// Terminal is a terminal that is made in the container.
type Terminal struct {
	Socket        *os.File // takes the master, as docs/terminals.md of runc describes it
	Width, Height uint16   // 0 for what the kernel makes of it
}

// Rlimit is a resource limit, see prlimit(2).
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// Capabilities are sets of bits, see capabilities(7).
type Capabilities struct {
	Bounding, Effective, Permitted, Inheritable, Ambient uint64
	Last                                                 int // the highest that the kernel knows
}

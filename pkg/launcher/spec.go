// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/seccomp"
)

// Process is a process that is to run in the namespaces of another one. No string may contain a zero byte, and the
// environment has each name once.
type Process struct {
	Args            []string
	Env             []string    // HOME is added when FindHome is set
	Cwd             string      // "" for the root
	FindHome        bool        // set HOME from the container's /etc/passwd, or to "/" if that does not say
	Stdio           [3]*os.File // nil for /dev/null; all are with a Terminal
	Terminal        *Terminal   // nil for none
	Target          *os.File    // pidfd of a process whose namespaces are joined, such as the init of a container
	Join            int         // the namespaces to join (CLONE_NEW… of clone(2)); the mount namespace is among them
	Cgroups         Cgroups     // to join; empty to stay in those of the caller
	OOMScoreAdj     *int
	Keyring         string // name of the session keyring, "" to keep the caller's
	Label           string // the SELinux label of its program and of its keyring, "" for what the policy says
	Profile         string // the AppArmor profile of its program, "" for none
	NoNewPrivileges bool
	Umask           *uint32
	Rlimits         []Rlimit
	Filter          *seccomp.Filter
	Ready           func() error // is called when the process is about to run its program; nil for none
	UID, GID        int
	MayDenyGroups   bool // its user namespace may deny setgroups(2): it then has no groups
	Groups          []int
	Capabilities    *Capabilities // nil to leave them
}

// Terminal is a terminal that is made in the container.
type Terminal struct {
	Socket        *os.File // takes the master, as docs/terminals.md of runc describes it
	Width, Height uint16   // 0 for the kernel's default
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

// Cgroups are directories of cgroups that a process joins.
type Cgroups struct {
	Unified string   // the one in the v2 hierarchy, "" for none
	Tasks   []string // those in the v1 hierarchies
	Freezer string   // the one of Tasks whose processes may be frozen, "" for none
}

// Container is the first process of a container: it makes the container's file systems, and then waits to be told to
// run its program. Target and Join of the Process are not used.
type Container struct {
	Process
	Namespaces           []Namespace // the mount namespace is among them
	Root                 string      // path of the root file system, a directory
	ReadonlyRoot         bool
	RootPropagation      int // MS_SHARED and others of mount(2), with MS_REC; 0 for MS_SLAVE
	Mounts               []*Mount
	Devices              []*Device     // the nodes of /dev
	CgroupMounts         []CgroupMount // the hierarchies that a mount of type cgroup shows on cgroup v1
	MountLabel           string        // SELinux label of the files of new file systems, "" for none
	ReadonlyPaths        []string
	MaskedPaths          []string
	Hostname, Domainname string            // "" to leave them
	Sysctl               map[string]string // values by names such as net.ipv4.ip_forward
	Loopback             bool              // switch the loopback device of the network namespace on
	Reaped               bool              // it runs under an init that reaps and forwards signals; without a Label
	// Forked is called with the process id before the file systems are made, such as for systemd's cgroups; nil for none.
	Forked func(pid int) error
	// Mounted is called before the file systems become the root of the process: for limits and hooks; nil for none.
	Mounted     func(pid int) error
	MountedOnce bool // Mounted cannot be called for another process in place of this one
}

// Namespace is a namespace of a container.
type Namespace struct {
	Type int    // CLONE_NEW… of clone(2)
	Path string // of the one to join, "" for a new one
}

// Bind is the type of a mount that shows a part of another file system.
const Bind = "bind"

// Mount is a mount in a container.
type Mount struct {
	Type                string // of the file system, or bind
	Source, Destination string
	Flags               int             // MS_… of mount(2); MS_BIND for type bind, and for no other
	ClearedFlags        int             // flags that a bind mount does not take over from its source
	Propagation         []int           // MS_SHARED and others, set one after another
	Data                string          // options of the file system, with commas between them
	Recursive           *unix.MountAttr // of a bind mount and all mounts below it; nil for none
}

// Device is a device node.
type Device struct {
	Path         string
	Type         rune // b, c, u or p, as in mknod(1)
	Major, Minor uint32
	Mode         uint32
	UID, GID     uint32
}

// CgroupMount is a hierarchy of cgroup v1, and the container's directory in it.
type CgroupMount struct {
	Name        string   // of the directory in the container
	Directory   string   // on the host
	Controllers []string // as the options of its mount name them
}

// Has reports whether the container has a namespace that is not the caller's.
func (i *Container) Has(namespace int) bool {
	return slices.ContainsFunc(i.Namespaces, func(ns Namespace) bool { return ns.Type == namespace })
}

// IsNew reports whether a namespace is made for the container.
func (i *Container) IsNew(namespace int) bool {
	return slices.Contains(i.Namespaces, Namespace{Type: namespace})
}

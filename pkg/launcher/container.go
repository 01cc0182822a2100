// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// initBuilder makes the request of a Container.
type initBuilder struct {
	*native.Request
	*Container
	next   int   // no descriptor from this one on is open
	free   []int // of those below it, these are not, in ascending order
	root   int   // of the container, with O_PATH
	reaped int   // the file of Reaped
}

// containerRequest returns the system calls that make a container: those of libcontainer (nsenter/nsexec.c,
// rootfs_linux.go, standard_init_linux.go).
func containerRequest(i *Container, moves bool, final *bool) *native.Request {
	b := &initBuilder{Request: &native.Request{}, Container: i}
	b.next = b.freeFD()
	if i.Cgroups.Freezer != "" {
		b.Thaw = filepath.Join(filepath.Dir(i.Cgroups.Freezer), "cgroup.procs")
	}
	if i.Reaped {
		b.reaped = b.fd()
	}
	given := b.next
	b.joinNamespaces()
	for fd := native.Socket; fd < given; fd++ {
		b.Call(unix.SYS_FCNTL, fd, unix.F_SETFD, unix.FD_CLOEXEC).OnError("fcntl")
	}
	b.fork(moves)
	b.prepareRoot()
	if i.IsNew(unix.CLONE_NEWCGROUP) {
		b.Call(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP).OnError("unshare the cgroup namespace")
	}
	b.loopback()
	b.keyring()
	for _, m := range i.Mounts {
		b.mount(m)
	}
	if b.needsDev() {
		b.makeDev()
	}
	b.Wait(func(pid int) error {
		// With the links that makeDev makes in a /dev of the image libcontainer v1.5.2 fails (setupDevSymlinks).
		*final = i.MountedOnce || !b.mountsOn("/dev")
		if i.Mounted == nil {
			return nil
		}
		return i.Mounted(pid)
	})
	procSelf := b.enterRoot()
	b.openConsole(procSelf, final)
	b.finalize()
	env, home := b.environment(b.Request)
	b.configureInit(home)
	user := b.Process
	if b.Reaped {
		user.Capabilities = b.afterExec()
	}
	user.becomeUser(b.Request)
	b.run(env)
	return b.Request
}

// fd returns the descriptor that the next call that opens one will return.
func (b *initBuilder) fd() int {
	if len(b.free) > 0 {
		fd := b.free[0]
		b.free = b.free[1:]
		return fd
	}
	b.next++
	return b.next - 1
}

func (b *initBuilder) release(fd int) {
	at, _ := slices.BinarySearch(b.free, fd)
	b.free = slices.Insert(b.free, at, fd)
}

func (b *initBuilder) close(fd int) *native.Step {
	b.release(fd)
	return b.Call(unix.SYS_CLOSE, fd)
}

// open adds a step that opens a path of the process.
func (b *initBuilder) open(path string, flags int) (fd int) {
	fd = b.fd()
	b.Call(unix.SYS_OPENAT, unix.AT_FDCWD, path, flags|unix.O_CLOEXEC).ExpectFD(fd).OnError("open " + path)
	return fd
}

// joinNamespaces joins the namespaces that have a path.
func (b *initBuilder) joinNamespaces() {
	b.Call(unix.SYS_CLOSE_RANGE, b.next, uint32(math.MaxUint32), 0).OnError("close_range")
	for _, ns := range b.Namespaces {
		if ns.Path != "" {
			fd := b.open(ns.Path, unix.O_RDONLY)
			b.Call(unix.SYS_SETNS, fd, ns.Type).OnError("setns " + ns.Path)
			b.close(fd)
		}
	}
}

// newNamespaces returns those into which init is forked. clone(2) takes the bit of a time namespace for one of a
// signal: that namespace is unshared before, and the child is the first in it (time_namespaces(7)).
func (b *initBuilder) newNamespaces() int {
	if b.IsNew(unix.CLONE_NEWTIME) {
		b.Call(unix.SYS_UNSHARE, unix.CLONE_NEWTIME).OnError("unshare the time namespace")
	}
	const others = unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME
	flags := 0
	for _, ns := range b.Namespaces {
		if ns.Path == "" {
			flags |= ns.Type
		}
	}
	return flags &^ others
}

// fork forks the process into its cgroups and its new namespaces. The cgroup namespace is not among them: its root is
// the cgroup in which it is made.
func (b *initBuilder) fork(moves bool) {
	free := b.fd()
	b.protect(b.Request, free)
	b.enterTasks(b.Request, free)
	namespaces := b.newNamespaces()
	if b.Cgroups.Unified != "" {
		b.enterUnified(b.Request, free, namespaces, moves)
	}
	if b.Cgroups.Unified == "" || moves {
		b.Fork(namespaces).OnError("clone")
	}
	b.release(free)
	b.Wait(b.Forked)
	resetAffinity(b.Request)
}

// loopback follows network_linux.go, loopback.initialize.
func (b *initBuilder) loopback() {
	if !b.Loopback {
		return
	}
	fd := b.fd()
	b.Call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0).ExpectFD(fd).OnError("socket")
	request := packed(struct { // struct ifreq
		Name  [unix.IFNAMSIZ]byte
		Flags uint16
		_     [22]byte
	}{Name: [unix.IFNAMSIZ]byte{'l', 'o'}, Flags: unix.IFF_UP | unix.IFF_LOOPBACK | unix.IFF_RUNNING})
	b.Call(unix.SYS_IOCTL, fd, unix.SIOCSIFFLAGS, request).OnError("set lo up")
	b.close(fd)
}

// keyring follows standard_init_linux.go. The permissions are those of a new keyring, and its user may search it.
func (b *initBuilder) keyring() {
	if b.Keyring == "" {
		return
	}
	const (
		sessionKeyring = 0xfffffffd                       // KEY_SPEC_SESSION_KEYRING
		permissions    = 0x3f130000                       // security/keys/process_keys.c, join_session_keyring
		userSearch     = 0x80000                          // KEY_USR_SEARCH
		words          = "unable to join session keyring" // of libcontainer
	)
	join := b.Call(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, b.Keyring).Tolerate(unix.ENOSYS).OnError(words)
	b.Call(unix.SYS_KEYCTL, unix.KEYCTL_SETPERM, uint64(sessionKeyring), permissions|userSearch).IfDone(join).
		OnError("unable to mod keyring permissions")
}

// configureInit follows standard_init_linux.go from the host name on.
func (b *initBuilder) configureInit(home native.Word) {
	if name := b.Hostname; name != "" {
		b.Call(unix.SYS_SETHOSTNAME, name, len(name)).OnError("sethostname")
	}
	if name := b.Domainname; name != "" {
		b.Call(unix.SYS_SETDOMAINNAME, name, len(name)).OnError("setdomainname")
	}
	b.sysctls()
	for _, path := range b.ReadonlyPaths {
		b.readonlyPath(path)
	}
	b.maskPaths()
	b.forbidPrivileges(b.Request)
	// From here on only the standard streams, the socket and the file of Reaped are open.
	unused := native.Socket + 1
	if b.Reaped {
		if b.reaped != unused {
			b.Call(unix.SYS_DUP3, b.reaped, unused, unix.O_CLOEXEC).OnError("dup3")
		}
		b.reaped = unused
		unused++
	}
	b.Call(unix.SYS_CLOSE_RANGE, unused, uint32(math.MaxUint32), 0).OnError("close_range")
	b.limit(b.Request, home, unused) // after that: the image may have made passwd a link to a descriptor
}

// afterExec returns the capabilities with which the program of an init is looked up: only those that the init still has
// when it executes the program are effective (capabilities(7)).
func (b *initBuilder) afterExec() *Capabilities {
	if b.Capabilities == nil || b.UID == 0 {
		return b.Capabilities
	}
	c := *b.Capabilities
	c.Effective = c.Ambient & c.Permitted & c.Inheritable
	return &c
}

// sysctls follows internal/sys/sysctl_linux.go. It writes to a procfs that nothing can be mounted on.
func (b *initBuilder) sysctls() {
	if len(b.Sysctl) == 0 {
		return
	}
	proc := b.newFilesystem("proc", "proc", nil, 0)
	for key, value := range b.Sysctl {
		fd := b.fd()
		how := packed(unix.OpenHow{
			Flags:   unix.O_WRONLY | unix.O_TRUNC | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
		})
		b.Call(unix.SYS_OPENAT2, proc, "sys/"+strings.ReplaceAll(key, ".", "/"), how, len(how)).ExpectFD(fd).
			OnError("open sysctl " + key + " file")
		b.Call(unix.SYS_WRITE, fd, value, len(value)).OnError(fmt.Sprintf("failed to write sysctl %s = %.100q", key, value))
		b.close(fd)
	}
	b.close(proc)
}

// run adds the last steps, following standard_init_linux.go from exec.LookPath on.
func (b *initBuilder) run(env native.Word) {
	b.lookup(b.Request)
	b.HandleSignals()
	b.Call(unix.SYS_SETSID).OnError("setsid failed")
	if b.Terminal != nil && !b.Reaped { // else the program gets it, in a session of its own (system.Setctty)
		b.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0).OnError("ioctl(setctty)")
	}
	b.loadLateFilter(b.Request)
	b.Hold()
	if b.Reaped {
		const sizeOfSigset = 8
		b.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, b.Table(uint64(math.MaxUint64)), 0, sizeOfSigset).
			OnError("block signals")
		b.ExecInit(b.reaped, b.Args, env).OnError("run the init")
		return
	}
	b.exec(b.Request, env)
}

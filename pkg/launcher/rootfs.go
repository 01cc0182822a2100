// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// prepareRoot follows rootfs_linux.go, prepareRoot.
func (b *initBuilder) prepareRoot() {
	propagation := unix.MS_SLAVE | unix.MS_REC
	if b.RootPropagation != 0 {
		propagation = b.RootPropagation
	}
	b.classicMount("", "/", propagation)
	parent := unix.MS_PRIVATE
	if b.RootPropagation&unix.MS_SLAVE != 0 {
		parent = unix.MS_SLAVE
	}
	dir := b.Root
	step := b.classicMount("", dir, parent)
	for dir != "/" { // EINVAL: it is not a mount point
		dir = filepath.Dir(dir)
		step.Tolerate(unix.EINVAL)
		step = b.classicMount("", dir, parent).IfFailed(step)
	}
	b.classicMount(b.Root, b.Root, unix.MS_BIND|unix.MS_REC)
	b.root = b.open(b.Root, unix.O_PATH|unix.O_DIRECTORY)
}

func (b *initBuilder) classicMount(source, target string, flags int) *native.Step {
	return b.Call(unix.SYS_MOUNT, source, target, "", flags, 0).OnError("mount " + target)
}

// needsDev follows rootfs_linux.go, needsSetupDev.
func (b *initBuilder) needsDev() bool {
	return !slices.ContainsFunc(b.Mounts, func(m *Mount) bool {
		return m.Type == Bind && path.Clean("/"+m.Destination) == "/dev"
	})
}

func (b *initBuilder) mountsOn(name string) bool {
	return slices.ContainsFunc(b.Mounts, func(m *Mount) bool {
		return path.Clean("/"+m.Destination) == name
	})
}

// makeDev follows rootfs_linux.go, doSetupDev.
func (b *initBuilder) makeDev() {
	parent, parentPath := -1, ""
	directory := func(name string) {
		if parentPath == name {
			return
		}
		if parent >= 0 {
			b.close(parent)
		}
		parent, parentPath = b.fd(), name
		b.Make(b.root, name, -1).ExpectFD(parent).OnError("make " + name)
	}
	for _, d := range b.Devices {
		name := path.Clean("/" + d.Path)
		if d.Path == "" || name == "/dev/ptmx" {
			continue
		}
		directory(path.Dir(name))
		made := b.makeNode(parent, path.Base(name), d)
		// What is there may be a dangling link: libcontainer makes the device where it leads.
		there := b.fd()
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
		b.Call(unix.SYS_OPENAT2, b.root, name, packed(how), unix.SizeofOpenHow).ExpectFD(there).IfFailed(made).
			OnError("open " + name)
		b.close(there).IfFailed(made)
	}
	directory("/dev")
	b.Call(unix.SYS_UNLINKAT, parent, "ptmx", 0).Tolerate(unix.ENOENT).OnError("unlink /dev/ptmx")
	b.Call(unix.SYS_SYMLINKAT, "pts/ptmx", parent, "ptmx").OnError("symlink /dev/ptmx")
	for _, link := range [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	} {
		b.Call(unix.SYS_SYMLINKAT, link[1], parent, link[0]).Tolerate(unix.EEXIST).OnError("symlink /dev/" + link[0])
	}
	core := b.Call(unix.SYS_FACCESSAT, unix.AT_FDCWD, "/proc/kcore", 0).IgnoreErrors()
	b.Call(unix.SYS_SYMLINKAT, "/proc/kcore", parent, "core").IfDone(core).Tolerate(unix.EEXIST).
		OnError("symlink /dev/core")
	b.close(parent)
}

// makeNode makes a device node, unless there is a file of that name.
func (b *initBuilder) makeNode(dir int, name string, d *Device) (made *native.Step) {
	kind := map[rune]uint32{'b': unix.S_IFBLK, 'c': unix.S_IFCHR, 'u': unix.S_IFCHR, 'p': unix.S_IFIFO}[d.Type]
	mode := d.Mode
	device := unix.Mkdev(d.Major, d.Minor)
	made = b.Call(unix.SYS_MKNODAT, dir, name, kind|mode, device).Tolerate(unix.EEXIST).OnError("mknodat " + d.Path)
	fd := b.fd()
	b.Call(unix.SYS_OPENAT, dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC).ExpectFD(fd).IfDone(made).
		OnError("open " + d.Path)
	b.CheckInode(fd, kind, device, 0, 0).IfDone(made).OnError("check " + d.Path)
	b.Call(unix.SYS_FCHMODAT, unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), mode).IfDone(made).
		OnError("chmod " + d.Path)
	b.Call(unix.SYS_FCHOWNAT, fd, "", d.UID, d.GID, unix.AT_EMPTY_PATH).IfDone(made).OnError("chown " + d.Path)
	b.close(fd).IfDone(made)
	return made
}

// enterRoot follows rootfs_linux.go, pivotRoot, and the rest of prepareRootfs. It returns the descriptor of the host's
// /proc/self/fd.
func (b *initBuilder) enterRoot() (procSelf int) {
	procSelf = -1
	if b.Terminal != nil {
		procSelf = b.open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY)
	}
	const what = "error jailing process inside rootfs: "
	old := b.open("/", unix.O_PATH|unix.O_DIRECTORY)
	b.Call(unix.SYS_FCHDIR, b.root).OnError(what + "fchdir")
	b.Call(unix.SYS_PIVOT_ROOT, ".", ".").OnError(what + "pivot_root .")
	b.Call(unix.SYS_FCHDIR, old).OnError(what + "fchdir")
	b.classicMount("", ".", unix.MS_SLAVE|unix.MS_REC)
	b.Call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH).OnError(what + "umount2")
	b.Call(unix.SYS_CHDIR, "/").OnError(what + "chdir /")
	b.close(old)
	if p := b.RootPropagation; p != 0 && p&(unix.MS_PRIVATE|unix.MS_SLAVE) == 0 {
		b.classicMount("", "/", p).OnError("unable to apply root propagation flags")
	}
	if b.needsDev() {
		null := b.openNull(unix.O_RDWR, "error reopening /dev/null inside container: can't reopen /dev/null")
		for stream := range b.Stdio {
			replaced := isNull(b.Request, stream)
			b.Call(unix.SYS_DUP3, null, stream, 0).IfDone(replaced).OnError("error reopening /dev/null inside container")
		}
		b.close(null)
	}
	if b.Cwd != "" {
		fd := b.fd()
		exists := b.Call(unix.SYS_FACCESSAT, unix.AT_FDCWD, b.Cwd, 0).IgnoreErrors()
		b.Make(b.root, b.Cwd, -1).ExpectFD(fd).IfFailed(exists).OnError("mkdir " + b.Cwd)
		b.close(fd).IfFailed(exists)
	}
	return procSelf
}

// openInside adds a step that opens a path in the root of the container. Descriptors of the host are still open: links
// of the container must not lead there through /proc/self/fd.
func (b *initBuilder) openInside(path string, flags int) (int, *native.Step) {
	fd := b.fd()
	return fd, b.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, path, packed(noMagicLinks(flags)), unix.SizeofOpenHow).
		ExpectFD(fd).OnError("open " + path)
}

// noMagicLinks returns the flags with which openat2(2) does not follow links of procfs that name no path.
func noMagicLinks(flags int) unix.OpenHow {
	return unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
}

// openNull follows verifyDevNull. The file is the container's, and may be anything.
func (b *initBuilder) openNull(flags int, what string) (fd int) {
	fd, _ = b.openInside("/dev/null", flags)
	b.CheckInode(fd, unix.S_IFCHR, unix.Mkdev(1, 3), 0, 0).Explain(func(unix.Errno, uint32) error {
		return errors.New(what + ": container's /dev/null is invalid")
	})
	return fd
}

// openConsole follows init_linux.go, setupConsole. Once the caller has the terminal, there is no other way.
func (b *initBuilder) openConsole(procSelf int, final *bool) {
	if b.Terminal == nil {
		return
	}
	const console = "/dev/console"
	handle, master, peer := b.fd(), b.fd(), b.fd()
	b.allocateTerminal(b.Request, procSelf, handle, master, peer)
	target := b.fd()
	how := noMagicLinks(unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY)
	how.Mode = 0o666
	b.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, console, packed(how), unix.SizeofOpenHow).ExpectFD(target).
		OnError("create /dev/console mount target")
	fd := b.cloneTree(peer, "", false)
	b.moveMount(fd, target)
	for _, fd := range []int{fd, target, procSelf} {
		b.close(fd)
	}
	b.Wait(func(int) error { *final = true; return nil })
	b.useTerminal(b.Request, master, peer)
	for _, fd := range []int{handle, master, peer} {
		b.close(fd)
	}
}

// finalize follows rootfs_linux.go, finalizeRootfs.
func (b *initBuilder) finalize() {
	for _, m := range b.Mounts {
		if m.Flags&unix.MS_RDONLY != 0 && delaysReadonly(m) {
			fd, _ := b.openInside(m.Destination, unix.O_PATH) // the upper one, if another mount covers m
			b.setAttributes(fd, m.Flags, "make "+m.Destination+" read-only")
			b.close(fd)
		}
	}
	if b.ReadonlyRoot {
		b.setAttributes(b.root, unix.MS_RDONLY, "error setting rootfs as readonly")
	}
	umask := uint32(0o022)
	if b.Umask != nil {
		umask = *b.Umask
	}
	b.Call(unix.SYS_UMASK, umask)
}

// readonlyPath follows rootfs_linux.go, readonlyPath.
func (b *initBuilder) readonlyPath(name string) {
	what := fmt.Sprintf("can't make %q read-only", name)
	target, exists := b.openInside(name, unix.O_PATH)
	exists.Tolerate(unix.ENOENT).OnError(what)
	fd := b.fd()
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE | unix.AT_EMPTY_PATH
	b.Call(unix.SYS_OPEN_TREE, target, "", flags).ExpectFD(fd).IfDone(exists).OnError(what)
	readonly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	b.setAttr(fd, readonly, false).IfDone(exists).OnError(what)
	b.moveMount(fd, target).IfDone(exists).OnError(what)
	b.close(fd).IfDone(exists)
	b.close(target).IfDone(exists)
	// At "/" only who enters the mount namespace later is in the new mount. This process stays in the one below, which
	// the path still names.
	again, opened := b.openInside(name, unix.O_PATH)
	opened.IfDone(exists).OnError(what)
	b.setAttr(again, readonly, false).IfDone(exists).OnError(what)
	b.close(again).IfDone(exists)
}

// maskPaths follows rootfs_linux.go, maskPaths. All directories share one empty file system.
func (b *initBuilder) maskPaths() {
	if len(b.MaskedPaths) == 0 {
		return
	}
	null := b.openNull(unix.O_PATH, "can't mask paths")
	options := append(parseOptions("ro,nr_blocks=1,nr_inodes=1"), contextOption(b.MountLabel)...)
	empty := b.newFilesystem("tmpfs", "tmpfs", options, unix.MOUNT_ATTR_RDONLY)
	// The first mount is this file system, and the others are copies of that mount, which may be shared by then. Before,
	// placed is the socket, of which there is no copy.
	placed := b.fd()
	b.Call(unix.SYS_FCNTL, native.Socket, unix.F_DUPFD_CLOEXEC, placed).ExpectFD(placed).OnError("fcntl")
	masked := map[string]bool{}
	for _, name := range b.MaskedPaths {
		if clean := path.Clean(name); !masked[clean] {
			masked[clean] = true
			b.maskPath(name, null, empty, placed)
		}
	}
	b.close(null)
	b.close(empty)
	b.close(placed)
}

func (b *initBuilder) maskPath(name string, null, empty, placed int) {
	what := fmt.Sprintf("can't mask path %q", name)
	target, directory := b.openInside(name, unix.O_PATH|unix.O_DIRECTORY)
	directory.Tolerate(unix.ENOENT, unix.ENOTDIR).OnError(what)
	fd := b.fd()
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	another := b.Call(unix.SYS_OPEN_TREE, placed, "", flags).ExpectFD(fd).IfDone(directory).Tolerate(unix.EINVAL).
		OnError(what)
	b.moveMount(fd, target).IfDone(another).OnError(what)
	b.Call(unix.SYS_CLOSE, fd).IfDone(another)
	b.moveMount(empty, target).IfFailed(another).OnError(what)
	b.Call(unix.SYS_DUP3, empty, placed, unix.O_CLOEXEC).IfFailed(another).OnError(what)
	b.Call(unix.SYS_CLOSE, target).IfDone(directory)

	file := b.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, name, packed(noMagicLinks(unix.O_PATH)), unix.SizeofOpenHow).
		ExpectFD(target).IfFailed(directory).Tolerate(unix.ENOENT).OnError(what)
	b.Call(unix.SYS_OPEN_TREE, null, "", flags).ExpectFD(fd).IfDone(file).OnError(what)
	b.moveMount(fd, target).IfDone(file).OnError(what)
	b.close(fd).IfDone(file)
	b.close(target).IfDone(file)
}

// useOwnNull replaces streams that are the host's /dev/null by the container's, as init has it. If the container has
// none, they stay what pkg/stdio opened, which has no path in the container.
func useOwnNull(r *native.Request) {
	const fd = initFD // it is not open any more

	how := packed(noMagicLinks(unix.O_RDWR | unix.O_NONBLOCK)) // the file may be anything
	opened := r.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, "/dev/null", how, unix.SizeofOpenHow).ExpectFD(fd).IgnoreErrors()
	null := isNull(r, fd).IfDone(opened)
	r.Call(unix.SYS_FCNTL, fd, unix.F_SETFL, 0).IfDone(null).OnError("fcntl")
	for stream := range 3 {
		replaced := isNull(r, stream).IfDone(null)
		r.Call(unix.SYS_DUP3, fd, stream, 0).IfDone(replaced).OnError("replace /dev/null")
	}
	r.Call(unix.SYS_CLOSE, fd).IfDone(opened)
}

// isNull adds a check, which may fail, that a descriptor is a null device.
func isNull(r *native.Request, fd int) *native.Step {
	return r.CheckInode(fd, unix.S_IFCHR, unix.Mkdev(1, 3), 0, 0).IgnoreErrors()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// The flags of mount(2) that are attributes of a mount (mount_setattr(2)), and those that are parameters of a file
// system (fsconfig(2)).
var (
	mountAttributes = map[int]uint64{
		unix.MS_RDONLY: unix.MOUNT_ATTR_RDONLY, unix.MS_NOSUID: unix.MOUNT_ATTR_NOSUID,
		unix.MS_NODEV: unix.MOUNT_ATTR_NODEV, unix.MS_NOEXEC: unix.MOUNT_ATTR_NOEXEC,
		unix.MS_NODIRATIME: unix.MOUNT_ATTR_NODIRATIME, unix.MS_NOSYMFOLLOW: unix.MOUNT_ATTR_NOSYMFOLLOW,
	}
	superblockFlags = map[int]string{
		unix.MS_RDONLY: "ro", unix.MS_SYNCHRONOUS: "sync", unix.MS_DIRSYNC: "dirsync", unix.MS_LAZYTIME: "lazytime",
	}
)

const (
	sizeofMountAttr = 32

	atimeFlags = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME
)

// attributes translates flags of mount(2) to those of mount_setattr(2).
func attributes(flags int) (set uint64) {
	for flag, attribute := range mountAttributes {
		if flags&flag != 0 {
			set |= attribute
		}
	}
	switch { // in the order of the kernel's fs/namespace.c, path_mount
	case flags&unix.MS_STRICTATIME != 0:
		set |= unix.MOUNT_ATTR_STRICTATIME
	case flags&unix.MS_NOATIME != 0:
		set |= unix.MOUNT_ATTR_NOATIME
	}
	return set
}

// mount follows rootfs_linux.go, mountToRootfs.
func (b *initBuilder) mount(m *Mount) {
	if m.Type == "cgroup" && len(b.CgroupMounts) > 0 {
		b.mountCgroups(m)
		return
	}
	var fd, target int
	if m.Type == Bind {
		fd = b.cloneTree(unix.AT_FDCWD, m.Source, m.Flags&unix.MS_REC != 0)
		if m.Flags&^(unix.MS_BIND|unix.MS_REC) != 0 || m.ClearedFlags != 0 {
			b.setAttributes(fd, m.Flags, "flags of "+m.Destination)
		}
		target = b.target(m.Destination, fd, false)
	} else {
		fd, target = b.mountFilesystem(m)
	}
	b.moveMount(fd, target).OnError("mount on " + m.Destination)
	b.close(target)
	for _, p := range m.Propagation {
		b.setAttr(fd, &unix.MountAttr{Propagation: uint64(p &^ unix.MS_REC)}, p&unix.MS_REC != 0).
			OnError("propagation of " + m.Destination)
	}
	if m.Recursive != nil && m.Type == Bind { // libcontainer ignores those of others
		b.setAttr(fd, m.Recursive, true).OnError("recursive flags of " + m.Destination)
	}
	b.close(fd)
}

// delaysReadonly reports whether m becomes read-only once all mounts are made: see finalize.
func delaysReadonly(m *Mount) bool {
	return m.Type == "tmpfs" || path.Clean("/"+m.Destination) == "/dev"
}

// mountFilesystem makes a new file system and opens what it is to be mounted on.
func (b *initBuilder) mountFilesystem(m *Mount) (fd, target int) {
	flags, kind := m.Flags, m.Type
	if delaysReadonly(m) {
		flags &^= unix.MS_RDONLY
	}
	if kind == "cgroup" {
		kind = "cgroup2"
	}
	var options []option
	for flag, name := range superblockFlags {
		if flags&flag != 0 {
			options = append(options, option{name: name})
		}
	}
	options = append(options, parseOptions(m.Data)...)
	label := b.MountLabel
	if kind == "tmpfs" || kind == "devpts" {
		options = append(options, contextOption(label)...)
	}
	fd = b.newFilesystem(kind, m.Source, options, attributes(flags)) // before the target is made, if options are wrong
	target = b.target(m.Destination, -1, kind == "proc" || kind == "sysfs")
	if kind == "mqueue" && label != "" {
		// A descriptor with O_PATH is not allowed; EOPNOTSUPP: there is no SELinux.
		path := fmt.Sprintf("/proc/self/fd/%d", fd)
		b.Call(unix.SYS_SETXATTR, path, "security.selinux", label, len(label), 0).Tolerate(unix.EOPNOTSUPP).
			OnError("label of " + m.Destination)
	}
	return fd, target
}

// contextOption returns the option that gives all files of a file system the SELinux label, if there is one.
func contextOption(label string) []option {
	if label == "" {
		return nil
	}
	return []option{{"context", true, label}}
}

// option is a parameter of a file system.
type option struct {
	name     string
	hasValue bool
	value    string
}

func parseOptions(data string) (options []option) {
	for text := range strings.SplitSeq(data, ",") {
		if name, value, hasValue := strings.Cut(text, "="); hasValue || name != "" {
			options = append(options, option{name, hasValue, value})
		}
	}
	return options
}

// newFilesystem makes a file system that is not mounted yet, and returns a descriptor of its root.
func (b *initBuilder) newFilesystem(kind, source string, options []option, attributes uint64) int {
	const ( // of fsconfig(2)
		setFlag, setString, create = 0, 1, 6
	)
	what := "make a file system of type " + kind
	context, fd := b.fd(), b.fd()
	b.Call(unix.SYS_FSOPEN, kind, unix.FSOPEN_CLOEXEC).ExpectFD(context).OnError(what)
	if source != "" {
		b.Call(unix.SYS_FSCONFIG, context, setString, "source", source, 0).OnError(what + ": source")
	}
	for _, o := range options {
		if o.hasValue {
			b.Call(unix.SYS_FSCONFIG, context, setString, o.name, o.value, 0).OnError(what + ": " + o.name)
		} else {
			b.Call(unix.SYS_FSCONFIG, context, setFlag, o.name, 0, 0).OnError(what + ": " + o.name)
		}
	}
	b.Call(unix.SYS_FSCONFIG, context, create, 0, 0, 0).OnError(what)
	b.Call(unix.SYS_FSMOUNT, context, unix.FSMOUNT_CLOEXEC, attributes).ExpectFD(fd).OnError(what)
	b.close(context)
	return fd
}

// target opens what is to be mounted on, and makes it if it is not there: a directory, or a file if descriptor like is
// one. A strict target is a directory with no link in its path. `..` takes away the name before it, as in libcontainer.
func (b *initBuilder) target(destination string, like int, strict bool) int {
	destination = path.Clean("/" + destination)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	if strict {
		how.Flags |= unix.O_DIRECTORY
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	fd := b.fd()
	existed := b.Call(unix.SYS_OPENAT2, b.root, destination, packed(how), unix.SizeofOpenHow).ExpectFD(fd).
		Tolerate(unix.ENOENT).OnError("open " + destination)
	b.Make(b.root, destination, like).ExpectFD(fd).IfFailed(existed).OnError("make " + destination)
	if strict { // Make follows links, which somebody may have put there meanwhile
		b.Call(unix.SYS_CLOSE, fd).IfFailed(existed).OnError("close")
		b.Call(unix.SYS_OPENAT2, b.root, destination, packed(how), unix.SizeofOpenHow).ExpectFD(fd).IfFailed(existed).
			OnError("open " + destination)
	} else {
		b.CheckNotProc(fd).OnError("check " + destination) // checkProcMount
	}
	return fd
}

// cloneTree opens a copy of the mount at a path, which is not mounted yet.
func (b *initBuilder) cloneTree(dir int, source string, recursive bool) int {
	fd := b.fd()
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	if source == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	b.Call(unix.SYS_OPEN_TREE, dir, source, flags).ExpectFD(fd).OnError("open_tree " + source)
	return fd
}

func (b *initBuilder) moveMount(fd, target int) *native.Step {
	const emptyPaths = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	return b.Call(unix.SYS_MOVE_MOUNT, fd, "", target, "", emptyPaths).OnError("move_mount")
}

func (b *initBuilder) setAttr(fd int, attr *unix.MountAttr, recursive bool) *native.Step {
	flags := unix.AT_EMPTY_PATH
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return b.Call(unix.SYS_MOUNT_SETATTR, fd, "", flags, packed(attr), sizeofMountAttr).OnError("mount_setattr")
}

// setAttributes sets flags on a mount and clears the others, as MS_REMOUNT|MS_BIND of mount(2) does.
func (b *initBuilder) setAttributes(fd, flags int, what string) {
	const accessFlags = atimeFlags | unix.MS_NODIRATIME
	attr := unix.MountAttr{Attr_set: attributes(flags), Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID |
		unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW}
	if flags&accessFlags != 0 {
		attr.Attr_clr |= unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME
	}
	b.setAttr(fd, &attr, false).OnError(what)
}

// mountCgroups follows rootfs_linux.go, mountCgroupV1.
func (b *initBuilder) mountCgroups(m *Mount) {
	const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	own := Mount{
		Source: "tmpfs", Type: "tmpfs", Destination: m.Destination, Flags: flags, Data: "mode=755",
		Propagation: m.Propagation,
	}
	b.mount(&own)
	for _, c := range b.CgroupMounts {
		destination := path.Join(m.Destination, c.Name)
		if !b.Has(unix.CLONE_NEWCGROUP) {
			b.mount(&Mount{
				Type: Bind, Source: c.Directory, Destination: destination,
				Flags: unix.MS_BIND | unix.MS_REC | m.Flags, Propagation: m.Propagation,
			})
			continue
		}
		target := b.target(destination, -1, false)
		source := "cgroup"
		var options []option
		for _, name := range c.Controllers {
			options = append(options, parseOptions(name)...)
			if name == "name=systemd" {
				source = "systemd"
			}
		}
		set := attributes(flags | m.Flags&unix.MS_RDONLY)
		if m.Flags&unix.MS_RDONLY != 0 {
			options = append(options, option{name: "ro"})
		}
		fd := b.newFilesystem("cgroup", source, options, set)
		b.moveMount(fd, target)
		b.close(target)
		b.close(fd)
	}
	for _, c := range b.CgroupMounts {
		if strings.Contains(c.Name, ",") {
			for name := range strings.SplitSeq(c.Name, ",") {
				dir := b.target(m.Destination, -1, false)
				b.Call(unix.SYS_SYMLINKAT, c.Name, dir, name).Tolerate(unix.EEXIST).OnError("symlink " + name)
				b.close(dir)
			}
		}
	}
}

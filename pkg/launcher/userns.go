// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"container/heap"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/spec"
)

// enterUserNamespace prepares the root, and opens what is to be bound, in the mount namespace of the container but with
// the rights outside its user namespace: inside, a source may be out of reach, and ids cannot be mapped. In that mount
// namespace mounts are locked, as in any copy for another user namespace (mount_namespaces(7)).
func (b *initBuilder) enterUserNamespace() {
	const what = "user namespace"
	first, second := b.fd(), b.fd() // of a pipe
	user, mount := b.fd(), b.fd()
	b.UserNamespace(b.userns, mapping(b.UIDMap), mapping(b.GIDMap)).OnError(what)
	heap.Push(&b.free, first)
	heap.Push(&b.free, second)
	b.Call(unix.SYS_SETNS, mount, unix.CLONE_NEWNS).OnError(what + ": setns")
	b.close(mount)
	b.prepareRoot()
	b.openSources(user)
	b.Call(unix.SYS_SETNS, user, unix.CLONE_NEWUSER).OnError(what + ": setns")
	b.close(user)
	if b.userns >= 0 {
		b.close(b.userns)
	}
	b.Call(unix.SYS_SETRESUID, 0, 0, 0).OnError(what + ": setresuid")
	setUndumpable(b.Request)
	b.Fork(b.newNamespaces() &^ unix.CLONE_NEWNS).OnError("clone")
	b.Wait(nil)
	b.Call(unix.SYS_SETRESGID, 0, 0, 0).OnError(what + ": setresgid")
	setUndumpable(b.Request)
}

// mapping returns the text of uid_map or gid_map.
func mapping(ids []specs.LinuxIDMapping) string {
	var text strings.Builder
	for _, m := range ids {
		fmt.Fprintf(&text, "%d %d %d\n", m.ContainerID, m.HostID, m.Size)
	}
	return text.String()
}

// openSources opens the sources that mounts and devices bind.
func (b *initBuilder) openSources(userns int) {
	b.sources = map[any]int{}
	for _, m := range b.Mounts {
		if m.Type == spec.Bind {
			fd := b.cloneTree(unix.AT_FDCWD, m.Source, m.Flags&unix.MS_REC != 0)
			b.sources[m] = fd
			b.mapIDs(m, fd, userns)
		}
	}
	for _, c := range b.CgroupMounts {
		b.sources[c.Directory] = b.cloneTree(unix.AT_FDCWD, c.Directory, true)
	}
	b.openDevices()
}

// openDevices opens the devices that are bound. Those that the container asked for it makes, in a file system of the
// host's user namespace: in one of the container's no device can be opened, and the host may have them under other
// names, with other owners. It covers the container's root meanwhile: Linux before 6.15 copies no mount that is
// nowhere.
func (b *initBuilder) openDevices() {
	nodes := -1
	if slices.ContainsFunc(b.Devices, func(d *spec.Device) bool { return d.Make }) {
		nodes = b.newFilesystem("tmpfs", "tmpfs", contextOption(b.MountLabel),
			unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		b.moveMount(nodes, b.root)
	}
	for i, d := range b.Devices {
		if d.Path == "" || path.Clean("/"+d.Path) == "/dev/ptmx" {
			continue
		}
		if !d.Make {
			b.sources[d] = b.cloneTree(unix.AT_FDCWD, d.Path, false)
			continue
		}
		name := strconv.Itoa(i)
		made := b.makeNode(nodes, name, d, unix.EPERM) // the caller itself is in a user namespace
		const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
		fd, what := b.fd(), "open_tree "+d.Path
		b.Call(unix.SYS_OPEN_TREE, nodes, name, flags).ExpectFD(fd).IfDone(made).OnError(what)
		b.Call(unix.SYS_OPEN_TREE, unix.AT_FDCWD, d.Path, flags).ExpectFD(fd).IfFailed(made).OnError(what)
		b.sources[d] = fd
	}
	if nodes >= 0 {
		b.Call(unix.SYS_UMOUNT2, b.Root, unix.MNT_DETACH).OnError("umount2")
		b.close(nodes)
	}
}

// source returns a descriptor of the source of m, and opens it unless it is open.
func (b *initBuilder) source(m *spec.Mount) int {
	for _, key := range []any{m, m.Source} {
		if fd, ok := b.sources[key]; ok {
			delete(b.sources, key)
			return fd
		}
	}
	fd := b.cloneTree(unix.AT_FDCWD, m.Source, m.Flags&unix.MS_REC != 0)
	b.mapIDs(m, fd, -1)
	return fd
}

// mapIDs follows mount_linux.go, mountFd. userns is the container's.
func (b *initBuilder) mapIDs(m *spec.Mount, fd, userns int) {
	if m.IDMap == nil {
		return
	}
	if path := m.IDMap.UserNS; path != "" {
		userns = b.open(path, unix.O_RDONLY)
		defer b.close(userns)
	}
	b.setAttr(fd, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}, m.IDMap.Recursive)
}

// descriptors is a heap.Interface: with thousands of mounts in a user namespace, as many are open.
type descriptors []int

func (d descriptors) Len() int           { return len(d) }
func (d descriptors) Less(i, j int) bool { return d[i] < d[j] }
func (d descriptors) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *descriptors) Push(fd any)       { *d = append(*d, fd.(int)) } //nolint:forcetypeassert // as above
func (d *descriptors) Pop() any {
	fd := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return fd
}

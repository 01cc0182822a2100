// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
	"sandbox.internal/shim/pkg/launcher/spec"
)

// makeUserNamespace returns the user namespace of c, which it makes unless c joins one, and a new mount namespace that
// belongs to it. They are those of a process of their own, which ends: that of the container keeps its rights outside.
func (l *Launcher) makeUserNamespace(ctx context.Context, c *spec.Container) (files []*os.File, failed error) {
	r := &native.Request{}
	setUndumpable(r)
	i := slices.IndexFunc(c.Namespaces, func(n spec.Namespace) bool { return n.Type == unix.CLONE_NEWUSER })
	path := c.Namespaces[i].Path
	if path == "" {
		r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER).OnError("unshare the user namespace")
		r.Wait(func(pid int) error {
			return errors.Join(
				os.WriteFile(fmt.Sprintf("/proc/%d/uid_map", pid), []byte(c.UIDMap), 0),
				os.WriteFile(fmt.Sprintf("/proc/%d/gid_map", pid), []byte(c.GIDMap), 0))
		})
	} else {
		const fd = native.Socket + 1
		r.Call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC).ExpectFD(fd).OnError("open " + path)
		r.Call(unix.SYS_SETNS, fd, unix.CLONE_NEWUSER).OnError("setns " + path)
	}
	r.Call(unix.SYS_SETRESGID, 0, 0, 0).OnError("setresgid")
	r.Call(unix.SYS_SETRESUID, 0, 0, 0).OnError("setresuid")
	setUndumpable(r)
	r.Call(unix.SYS_UNSHARE, unix.CLONE_NEWNS).OnError("unshare the mount namespace")
	r.Hold()
	run, err := l.start(&spec.Process{}, nil, nil)
	if err != nil {
		return nil, err
	}
	p, err := run.Execute(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	for _, name := range []string{"user", "mnt"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", p.Pid, name))
		failed = errors.Join(failed, err)
		files = append(files, f)
	}
	failed = errors.Join(failed, run.Kill())
	return files, failed
}

// enterUserNamespace prepares the root, and opens what is to be bound, in the mount namespace of the container but with
// the rights outside its user namespace: inside, a source may be out of reach, and ids cannot be mapped.
func (b *initBuilder) enterUserNamespace() {
	const what = "user namespace"
	b.Call(unix.SYS_SETNS, b.mounts, unix.CLONE_NEWNS).OnError(what + ": setns")
	b.close(b.mounts)
	b.prepareRoot()
	b.openSources(b.user)
	b.Call(unix.SYS_SETNS, b.user, unix.CLONE_NEWUSER).OnError(what + ": setns")
	b.close(b.user)
	b.Call(unix.SYS_SETRESUID, 0, 0, 0).OnError(what + ": setresuid")
	setUndumpable(b.Request)
	b.Fork(b.newNamespaces() &^ unix.CLONE_NEWNS).OnError("clone")
	b.Wait(nil)
	b.Call(unix.SYS_SETRESGID, 0, 0, 0).OnError(what + ": setresgid")
	setUndumpable(b.Request)
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
	for _, d := range b.Devices { // no device can be opened in a file system of the container's user namespace
		if d.Path != "" && path.Clean("/"+d.Path) != "/dev/ptmx" {
			b.sources[d] = b.cloneTree(unix.AT_FDCWD, d.Path, false)
		}
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

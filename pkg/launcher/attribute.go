// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// attribute is a file in /proc by which a process tells the security module what is to confine the program that it runs
// next. Only the process itself may write to it, through a descriptor of its own (fs/proc/base.c, proc_pid_attr_write).
// A child inherits what it wrote.
type attribute string

const (
	keyLabel  attribute = "self/attr/keycreate"
	execLabel attribute = "thread-self/attr/exec"
	profile   attribute = "thread-self/attr/apparmor/exec" // absent where the kernel has no AppArmor
)

// attributes returns those to be set, in the order of their descriptors.
func (c *command) attributes() (list []attribute) {
	if c.Label != "" {
		list = append(list, execLabel)
		if c.Keyring != "" {
			list = append(list, keyLabel)
		}
	}
	if c.Profile != "" {
		list = append(list, profile)
	}
	return list
}

// openProcfs opens the host's /proc, and nothing that was mounted there instead.
func openProcfs() (*os.File, error) {
	const rootInode = 1 // fs/proc/internal.h, PROC_ROOT_INO
	proc, err := os.OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	var st unix.Stat_t
	err = unix.Fstatfs(int(proc.Fd()), &fs)
	if err == nil {
		err = unix.Fstat(int(proc.Fd()), &st)
	}
	if err == nil && (fs.Type != unix.PROC_SUPER_MAGIC || st.Ino != rootInode) {
		err = fmt.Errorf("must be the root of a procfs: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		_ = proc.Close() // only names a directory
		return nil, fmt.Errorf("/proc: %w", err)
	}
	return proc, nil
}

// openAttributes opens the attributes while the process has the host's /proc: in the mount namespace of the container
// anything may be there (CVE-2019-16884). It crosses no mount below /proc.
func (c *command) openAttributes(r *native.Request) {
	first := c.freeFD()
	for i, a := range c.attributes() {
		a.open(r, first-1, first+i)
	}
}

// open opens a through proc, a descriptor of the host's /proc.
func (a attribute) open(r *native.Request, proc, fd int) {
	how := packed(unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
	r.Call(unix.SYS_OPENAT2, proc, string(a), how, len(how)).ExpectFD(fd).OnError(a.failed("open"))
}

// setAttribute writes to an attribute, if it is one of those to be set, and closes it.
func (c *command) setAttribute(r *native.Request, a attribute) {
	i := slices.Index(c.attributes(), a)
	if i < 0 {
		return
	}
	c.writeAttribute(r, a, c.freeFD()+i)
	r.Call(unix.SYS_CLOSE, c.freeFD()+i)
}

func (c *command) writeAttribute(r *native.Request, a attribute, fd int) {
	text := c.Label
	if a == profile {
		text = "exec " + c.Profile
	}
	r.Call(unix.SYS_WRITE, fd, text, len(text)).OnError(a.failed("write"))
}

func (a attribute) failed(operation string) string {
	what := operation + " /proc/" + string(a)
	if a == profile {
		what = "apparmor failed to apply profile: " + what
	}
	return what
}

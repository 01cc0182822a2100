// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// attribute is a file in /proc by which a process, and nobody else, tells the security module what is to confine its
// next program, also that of its child (fs/proc/base.c, proc_pid_attr_write).
type attribute string

const (
	keyLabel  attribute = "self/attr/keycreate"
	execLabel attribute = "thread-self/attr/exec"
	profile   attribute = "thread-self/attr/apparmor/exec" // absent where the kernel has no AppArmor
)

// attributes returns those to be set, in the order of their descriptors.
func (c *Process) attributes() (list []attribute) {
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

// openAttribute opens an attribute while the process has the host's /proc: in the mount namespace of the container
// anything may be there (CVE-2019-16884).
func (c *Process) openAttribute(r *native.Request, a attribute, fd int) {
	how := packed(unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
	r.Call(unix.SYS_OPENAT2, c.freeFD()-1, string(a), how, len(how)).ExpectFD(fd).OnError(a.failed("open"))
}

// setOwnAttribute writes to an attribute, if it is one of those to be set, and closes it.
func (c *Process) setOwnAttribute(r *native.Request, a attribute) {
	if i := slices.Index(c.attributes(), a); i >= 0 {
		c.setAttribute(r, a, c.freeFD()+i)
	}
}

func (c *Process) setAttribute(r *native.Request, a attribute, fd int) {
	text := c.Label
	if a == profile {
		text = "exec " + c.Profile
	}
	r.Call(unix.SYS_WRITE, fd, text, len(text)).OnError(a.failed("write"))
	r.Call(unix.SYS_CLOSE, fd)
}

func (a attribute) failed(operation string) string {
	what := operation + " /proc/" + string(a)
	if a == profile {
		what = "apparmor failed to apply profile: " + what
	}
	return what
}

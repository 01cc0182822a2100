// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"strconv"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// openTerminal follows console_linux.go, safeAllocPty, and init_linux.go, setupConsole.
func (c *Process) openTerminal(r *native.Request, procSelfFD int) {
	handle, master, peer := procSelfFD+1, procSelfFD+2, procSelfFD+3
	c.allocateTerminal(r, procSelfFD, handle, master, peer)
	c.useTerminal(r, master, peer)
}

// allocateTerminal makes a terminal. handle, master and peer are the lowest free descriptors.
func (c *Process) allocateTerminal(r *native.Request, procSelfFD, handle, master, peer int) {
	const ptmx = "/dev/pts/ptmx"
	how := noMagicLinks(unix.O_PATH | unix.O_NOFOLLOW) // the host's /proc/self/fd is open
	r.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, ptmx, packed(how), unix.SizeofOpenHow).
		ExpectFD(handle).OnError("open " + ptmx)
	const inode = 2 // of fs/devpts/inode.c
	r.CheckInode(handle, unix.S_IFCHR, unix.Mkdev(5, 2), unix.DEVPTS_SUPER_MAGIC, inode).OnError("verify ptmx handle")
	r.Call(unix.SYS_OPENAT, procSelfFD, strconv.Itoa(handle), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC).
		ExpectFD(master).OnError("reopen ptmx to get new pty pair")
	r.Call(unix.SYS_IOCTL, master, unix.TIOCSPTLCK, r.Table(0))
	r.Call(unix.SYS_IOCTL, master, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC).
		ExpectFD(peer).OnError("failed to get peer end of newly-allocated console: ioctl TIOCGPTPEER")
	if t := c.Terminal; t.Width != 0 && t.Height != 0 {
		r.Call(unix.SYS_IOCTL, master, unix.TIOCSWINSZ, packed(unix.Winsize{Row: t.Height, Col: t.Width}))
	}
}

// useTerminal sends the master to the caller, and makes the peer the standard streams.
func (c *Process) useTerminal(r *native.Request, master, peer int) {
	const name = "/dev/pts/ptmx"
	rights := unix.UnixRights(master)
	// struct msghdr of sendmsg(2): no address, one vector, one control message.
	message := r.Table(0, 0, r.Table(name, len(name)), 1, rights, len(rights), 0)
	r.Call(unix.SYS_SENDMSG, c.consoleFD(), message, 0).OnError("sendmsg")
	for fd := range c.Stdio {
		r.Call(unix.SYS_DUP3, peer, fd, 0).OnError("dup3")
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"os"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

const (
	mostPasswd = 2 << 20 // bytes of a passwd file that is read
	homeRoom   = len("HOME=") + unix.PathMax
)

// environment adds the environment, which ends with home if HOME is to be found.
func (c *Process) environment(r *native.Request) (env, home native.Word) {
	if !c.FindHome {
		return r.Strings(c.Env), home
	}
	home = r.Room(homeRoom)
	return r.Strings(c.Env, home), home
}

// limit has the caller set the resource limits and find HOME. The process copies passwd to memory, since that file may
// block who opens it, and the caller puts HOME there instead. fd and the next descriptor are the lowest free ones.
func (c *Process) limit(r *native.Request, home native.Word, fd int) {
	if !c.FindHome {
		r.Wait(c.setRlimits)
		return
	}
	made := r.Call(unix.SYS_MEMFD_CREATE, "home", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL).ExpectFD(fd).
		Tolerate(unix.EINVAL).OnError("memfd_create")
	r.Call(unix.SYS_MEMFD_CREATE, "home", unix.MFD_CLOEXEC).ExpectFD(fd).IfFailed(made).OnError("memfd_create")
	passwd := fd + 1
	how := packed(noMagicLinks(unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY)) // the file may be anything
	opened := r.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, "/etc/passwd", how, unix.SizeofOpenHow).ExpectFD(passwd).
		IgnoreErrors()
	regular := r.CheckInode(passwd, unix.S_IFREG, 0, 0, 0).IfDone(opened).IgnoreErrors()
	// Files of pseudo file systems cannot be mapped. To read them may have effects, as with /proc/kmsg and trace_pipe.
	mapped := r.Call(unix.SYS_MMAP, 0, 1, unix.PROT_READ, unix.MAP_PRIVATE, passwd, 0).IfDone(regular).IgnoreErrors()
	r.Call(unix.SYS_SENDFILE, fd, passwd, 0, mostPasswd+1).IfDone(mapped).IgnoreErrors()
	r.Call(unix.SYS_CLOSE, passwd).IfDone(opened)
	r.Wait(func(pid int) error {
		if err := setHome(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), c.UID); err != nil {
			return err
		}
		return c.setRlimits(pid)
	})
	r.Call(unix.SYS_PREAD64, fd, home, homeRoom, 0).OnError("read HOME")
	r.Call(unix.SYS_CLOSE, fd)
}

// setHome replaces the text of a passwd file by the setting of HOME.
func setHome(file string, uid int) error {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0) // os.OpenFile asks Go's poller to watch it
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close() //nolint:errcheck // it is in memory
	_, err = f.WriteAt([]byte("HOME="+homeOf(f, uid)+"\x00"), 0)
	return err
}

// homeOf returns the home directory in the first line of uid, as libcontainer does (github.com/moby/sys/user,
// LookupUid), or "/" if that has none or the file is too large.
func homeOf(f *os.File, uid int) string {
	found := false
	users, err := user.ParsePasswdFilter(f, func(u user.User) bool {
		first := u.Uid == uid && !found
		found = found || first
		return first
	})
	info, failed := f.Stat()
	if err != nil || failed != nil || info.Size() > mostPasswd || !found || len(users[0].Home) >= unix.PathMax {
		return "/"
	}
	return users[0].Home
}

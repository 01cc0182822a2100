// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/unixfile"
)

const (
	program     = "containerd-shim-sandbox-v1"
	shimTimeout = 10 * time.Second // for its end
)

// shim asks a shim whose bundle is gone, and that has no container, to end.
func (r Remover) shim(ctx context.Context, l leftover.Leftover) error {
	fd, err := unix.PidfdOpen(l.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", l.Pid, err)
	}
	defer unix.Close(fd) //nolint:errcheck // no file
	// Looked at while the pidfd is open. If it has not ended after that, it is the process that was seen.
	now, err := r.again(ctx, l)
	if err != nil {
		return err
	}
	if now == nil {
		return ErrGone
	}
	if err := recognize(l.Pid); err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrGone
		}
		return fmt.Errorf("SIGTERM to the shim, pid %d: %w", l.Pid, err)
	}
	return awaitEnd(ctx, fd, l.Pid)
}

// recognize refuses a process that only has the command line of a shim: one of another user, or another program.
func recognize(pid int) error {
	root := machine.Root("/")
	status, err := machine.ReadText(root.ProcFile(pid, "status"))
	if err != nil {
		return err
	}
	own := fmt.Sprint(os.Geteuid())
	for line := range strings.Lines(status) {
		if ids, found := strings.CutPrefix(line, "Uid:"); found {
			for id := range strings.FieldsSeq(ids) {
				if id != own {
					return fmt.Errorf("process %d is not root's", pid)
				}
			}
		}
	}
	exe, err := os.Readlink(root.ProcFile(pid, "exe"))
	if err != nil {
		return err
	}
	if filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != program {
		return fmt.Errorf("process %d is no shim: it runs %s", pid, exe)
	}
	return nil
}

// awaitEnd waits until the process of a pidfd has ended.
func awaitEnd(ctx context.Context, fd, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, shimTimeout)
	defer cancel()
	const step = 100 // ms, after which the context is looked at
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, step)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of %d: %w", pid, err)
		}
	}
	return fmt.Errorf("the shim, pid %d, lives after SIGTERM: %w", pid, ctx.Err())
}

// lockTimeout is for the lock of the directory of sockets, which shims hold over a few system calls.
const lockTimeout = 2 * time.Second

// socket removes a socket on which nobody listens. No shim of ours can begin to listen meanwhile: it takes the same
// lock for that. Those of other runtimes take none.
func (r Remover) socket(ctx context.Context, l leftover.Leftover) error {
	dir, err := openTop(filepath.Dir(l.Path))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // opened for reading
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	unlock, err := unixfile.Lock(ctx, inFD(dir))
	if err != nil {
		return fmt.Errorf("%s: %w", dir.Name(), err)
	}
	defer unlock()
	name := filepath.Base(l.Path)
	st, err := lstat(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return ErrGone
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is no socket", l.Path)
	}
	if err := nobodyListens(ctx, dir, name); err != nil {
		return err
	}
	return unlinkSocket(ctx, dir, name, st)
}

func nobodyListens(ctx context.Context, dir *os.File, name string) error {
	path := filepath.Join(dir.Name(), name)
	conn, err := new(net.Dialer).DialContext(ctx, "unix", inFD(dir, name))
	if err == nil {
		return errors.Join(fmt.Errorf("%s: somebody listens by now", path), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s: whether somebody listens: %w", path, err)
	}
	return nil
}

// unlinkSocket removes a socket that was seen. A new one of the same name stays. One that was set aside when this
// program was killed is found as a leftover.
func unlinkSocket(ctx context.Context, dir *os.File, name string, seen unix.Stat_t) error {
	fd, aside := int(dir.Fd()), "removed-"+name
	if err := unix.Renameat2(fd, name, fd, aside, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(dir.Name(), name), New: aside, Err: err}
	}
	now, err := lstat(dir, aside)
	if err == nil && (now.Dev != seen.Dev || now.Ino != seen.Ino) {
		err = fmt.Errorf("%s was made anew meanwhile", filepath.Join(dir.Name(), name))
	}
	if err == nil {
		err = nobodyListens(ctx, dir, aside)
	}
	if err != nil {
		return errors.Join(err, unix.Renameat2(fd, aside, fd, name, unix.RENAME_NOREPLACE))
	}
	return unlink(dir, aside, 0)
}

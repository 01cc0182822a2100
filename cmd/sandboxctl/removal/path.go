// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/unixfile"
)

// openTop opens a directory by its absolute path, no part of which is a symbolic link. Only root and the
// user of this program may write to it.
func openTop(path string) (*os.File, error) {
	return unchangeable(open(unix.AT_FDCWD, path, path, unix.O_RDONLY, unix.RESOLVE_NO_SYMLINKS))
}

// openIn opens a directory below another on the same mount, through no symbolic link.
func openIn(dir *os.File, name string) (*os.File, error) {
	const inside = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH
	return open(int(dir.Fd()), name, filepath.Join(dir.Name(), name), unix.O_RDONLY, inside)
}

// pathIn opens a directory in another, or what is mounted at it, as a path: the file system is not asked for that.
func pathIn(dir *os.File, name string) (*os.File, error) {
	const inside = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH
	return open(int(dir.Fd()), name, filepath.Join(dir.Name(), name), unix.O_PATH, inside)
}

func open(at int, name, path string, flags, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve}
	fd, err := unixfile.Openat2(at, name, &how)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s, or a directory above it, is a symbolic link or no directory: %w", path, err)
	case errors.Is(err, unix.EXDEV):
		return nil, fmt.Errorf("%s, or a directory above it, is a mount: %w", path, err)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// unchangeable refuses a directory in which somebody else can put something in the place of what was looked at.
func unchangeable(dir *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	const others = 0o022
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	if err == nil && (int(st.Uid) != os.Geteuid() && st.Uid != 0 || st.Mode&others != 0) {
		err = fmt.Errorf("%s can be written by others than root (uid %d, mode %04o)", dir.Name(), st.Uid, st.Mode&0o7777)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// openBelow opens a directory below top, and its parent. Only root and the user of this program may
// write to either.
func openBelow(top, path string) (parent, dir *os.File, err error) {
	rel, err := filepath.Rel(top, path)
	if err != nil || !filepath.IsLocal(rel) || rel == "." {
		return nil, nil, fmt.Errorf("%s is not below %s", path, top)
	}
	t, err := openTop(top)
	if err != nil {
		return nil, nil, err
	}
	if up := filepath.Dir(rel); up == "." {
		parent = t
	} else {
		parent, err = unchangeable(openIn(t, up))
		err = errors.Join(err, t.Close())
		if err != nil {
			return nil, nil, err
		}
	}
	dir, err = unchangeable(openIn(parent, filepath.Base(rel)))
	if err != nil {
		_ = parent.Close() // opened for reading
		return nil, nil, err
	}
	return parent, dir, nil
}

// lstat is fstatat(2) of a name in a directory.
func lstat(dir *os.File, name string) (st unix.Stat_t, err error) {
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, &os.PathError{Op: "stat", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return st, nil
}

// is reports whether a name in a directory is still the directory that was opened.
func is(parent *os.File, name string, dir *os.File) (bool, error) {
	var opened unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &opened); err != nil {
		return false, err
	}
	st, err := lstat(parent, name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && st.Dev == opened.Dev && st.Ino == opened.Ino, err
}

// unlink removes a file, or with unix.AT_REMOVEDIR an empty directory.
func unlink(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil {
		return &os.PathError{Op: "remove", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return nil
}

// empty removes all that is in a directory, and leaves what is behind a mount or a symbolic link.
func empty(dir *os.File) error {
	names, err := dir.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		err := unlink(dir, name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = removeDir(dir, name)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeDir removes a directory with all that is in it.
func removeDir(parent *os.File, name string) error {
	dir, err := openIn(parent, name)
	if err != nil {
		return err
	}
	err = empty(dir)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	return unlink(parent, name, unix.AT_REMOVEDIR)
}

// inFD returns a path that leads to an open directory, wherever that is.
func inFD(dir *os.File, elem ...string) string {
	return strings.Join(append([]string{fmt.Sprintf("/proc/self/fd/%d", dir.Fd())}, elem...), "/")
}

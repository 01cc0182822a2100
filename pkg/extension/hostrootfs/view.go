// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// skeletons is a directory in the bundle, with a directory for each entry with hidden files: a copy of directories,
// links and small files, and an empty file or directory for each mount. Hidden files are not mounted, so nothing that
// the host does later can show them. The kernel would remove a mount over one at a rename, as of /etc/shadow by
// passwd(1).
const skeletons = "host-rootfs"

// mostCopied is the size of the largest file that is copied: a copy costs a tenth of the time of a mount.
const mostCopied = 16 << 10

// makeSkeletons makes the directory in a new bundle.
func makeSkeletons(bundle string) (*os.Root, error) {
	root, err := os.OpenRoot(bundle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()                  // opened for its name only
	if err := root.Mkdir(skeletons, 0o711); err != nil { // root of a user namespace passes
		return nil, err
	}
	return root.OpenRoot(skeletons)
}

// removeSkeletons removes the directory. The copy of the bundle's mount has no mounts in it, whose content would be
// removed.
func removeSkeletons(bundle string) error {
	if unixfile.Remove(filepath.Join(bundle, skeletons)) == nil { // empty, as if nothing is hidden, or not there
		return nil
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, bundle, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: bundle, Err: err}
	}
	defer func() { _ = unix.Close(tree) }() // opened for its name only
	return os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/%s", tree, skeletons))
}

type view struct {
	made    *os.Root // the directory with the skeletons
	hidden  hidden
	entries []entry
	taken   []mountPoint // where something else is mounted in the entry, or in its place
	mounts  []specs.Mount
}

type mountPoint struct {
	path string // in the container
	file bool   // not a directory
}

// isFile returns false for an absent path, which mounting reports.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// taken returns where the configuration or another entry mounts something in e or in its place.
func (h *Rootfs) taken(e entry, c *process.Config) []mountPoint {
	var taken []mountPoint
	for _, m := range c.Spec.Mounts {
		at, source := filepath.Clean(m.Destination), m.Source
		if !filepath.IsAbs(source) {
			source = filepath.Join(c.Bundle, source)
		}
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if within(at, e.container) {
			taken = append(taken, mountPoint{at, bind && isFile(source)})
		}
	}
	for _, other := range h.entries {
		if below(other.container, e.container) {
			taken = append(taken, mountPoint{other.container, isFile(other.host)})
		}
	}
	return taken
}

// add shows e. root is the container's root directory, and dir the path of the directory of skeletons.
func (v *view) add(e entry, root int, dir, skeleton string) error {
	if e.link != "" {
		if done, err := linkIn(root, e); done || err != nil {
			return err
		}
	}
	// Files that are made later are not seen.
	if e.writable || !v.hidden.anyIn(e.host) {
		v.mounts = append(v.mounts, e.bind())
		return nil
	}
	if err := v.made.Mkdir(skeleton, 0o700); err != nil {
		return err
	}
	for _, t := range v.taken {
		if err := v.makePoint(filepath.Join(skeleton, strings.TrimPrefix(t.path, e.container)), t.file); err != nil {
			return err
		}
	}
	v.mounts = append(v.mounts, entry{host: filepath.Join(dir, skeleton), container: e.container}.bind())
	return v.addParts(e.host, e.container, skeleton)
}

// addParts shows the files of dir that are not hidden. point is dir's place in v.made.
func (v *view) addParts(dir, container, point string) error {
	if err := v.makeLike(point, dir); err != nil {
		return err
	}
	made, err := v.made.Open(point)
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }() // opened for its name only
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		e := entry{host: filepath.Join(dir, f.Name()), container: filepath.Join(container, f.Name())}
		taken := slices.ContainsFunc(v.taken, func(t mountPoint) bool { return t.path == e.container })
		if taken || !v.hidden.shows(e.host) {
			continue
		}
		if err := v.addPart(e, f.Type(), made, filepath.Join(point, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// addPart shows e, a file of that type. point is its place in v.made, in the directory made.
func (v *view) addPart(e entry, mode fs.FileMode, made *os.File, point string) error {
	if mode&fs.ModeSymlink != 0 {
		target, ok := v.hidden.leadsOut(e.host, v.entries)
		if !ok {
			return v.copyLink(e.host, point)
		}
		e.host = target
	}
	file := mode.IsRegular() || isFile(e.host)
	if file {
		if done, err := copyFile(e.host, made, filepath.Base(point)); done || err != nil {
			return err
		}
	} else if v.hidden.anyIn(e.host) {
		return v.addParts(e.host, e.container, point)
	}
	if err := v.makePoint(point, file); err != nil {
		return err
	}
	v.mounts = append(v.mounts, e.bind())
	return nil
}

// copyFile copies a small regular file to the directory to, by plain system calls: with Go's poller there are twice as
// many.
func copyFile(from string, to *os.File, name string) (done bool, err error) {
	source, err := unix.Open(from, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: from, Err: err}
	}
	defer unix.Close(source) //nolint:errcheck // only read
	var info unix.Stat_t
	if err := unix.Fstat(source, &info); err != nil || info.Mode&unix.S_IFMT != unix.S_IFREG || info.Size > mostCopied {
		return false, err
	}
	text := make([]byte, cmp.Or(info.Size, mostCopied)) // pseudo file systems give no size
	n, err := unix.Read(source, text)
	if err != nil {
		return false, &os.PathError{Op: "read", Path: from, Err: err}
	}
	how := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	copied, err := unix.Openat(int(to.Fd()), name, how, 0o600)
	if err != nil {
		err = &os.PathError{Op: "openat", Path: name, Err: err}
		return errors.Is(err, os.ErrExist), unlessExists(err) // a mount of the configuration lies there
	}
	written, err := unix.Write(copied, text[:n])
	if err == nil && written < n {
		err = io.ErrShortWrite
	}
	if err = errors.Join(err, unix.Fchmod(copied, info.Mode&0o777), unix.Close(copied)); err != nil {
		return true, fmt.Errorf("copy %s: %w", from, err)
	}
	return true, nil
}

// makePoint makes a file or a directory with its parents, unless it exists.
func (v *view) makePoint(name string, file bool) error {
	if !file {
		return v.made.MkdirAll(name, 0o755)
	}
	if err := v.made.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := v.made.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		return f.Close()
	}
	return unlessExists(err)
}

func unlessExists(err error) error {
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// makeLike makes a directory with the mode and the owner of like, or changes one.
func (v *view) makeLike(name, like string) error {
	info, err := os.Stat(like)
	if err != nil {
		return err
	}
	if err := unlessExists(v.made.Mkdir(name, 0o700)); err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return errors.Join(v.made.Lchown(name, int(owner.Uid), int(owner.Gid)), v.made.Chmod(name, info.Mode()))
}

// copyLink makes a link as from is, unless there is a mount point in its place.
func (v *view) copyLink(from, name string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return unlessExists(v.made.Symlink(target, name))
}

// linkIn makes the symbolic link of e in the root file system, unless an image has something else there. No link of an
// image leads out of root.
func linkIn(root int, e entry) (bool, error) {
	dir, err := unixfile.Openat2(root, filepath.Dir(e.container), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil // libcontainer makes its parents too
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(dir) }() // opened for its name only
	name := filepath.Base(e.container)
	if err := unix.Symlinkat(e.link, dir, name); !errors.Is(err, unix.EEXIST) {
		return err == nil, err
	}
	existing := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, existing)
	return err == nil && string(existing[:n]) == e.link, nil
}

// bind mounts e private, since later mounts of the host would not be read-only.
func (e entry) bind() specs.Mount {
	access := "rro"
	if e.writable {
		access = "rw"
	}
	return specs.Mount{
		Destination: e.container, Type: "bind", Source: e.host,
		Options: []string{"rbind", "rprivate", access, "rnosuid", "rnodev"},
	}
}

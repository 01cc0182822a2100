// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// skeletons lies in the bundle. It has a directory for each entry of which something is hidden: a copy of the entry's
// directories with its links, and with an empty file or directory for everything that is mounted there. What is hidden
// is not mounted, so nothing the host does later can bring it back. A mount over a hidden file could not last: the
// kernel removes it when the host renames another file over that one, as passwd(1) does with /etc/shadow.
const skeletons = "host-rootfs"

// view collects the mounts that show one entry.
type view struct {
	hidden  hidden
	entries []entry
	taken   []mountPoint // where something else is mounted in the entry, or in its place
	mounts  []specs.Mount
	late    []entry // that Created mounts
}

// mountPoint is where something else is mounted in a directory.
type mountPoint struct {
	path string // in the container
	file bool   // not a directory
}

// isFile returns false for what does not exist, which mounting reports.
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

// add shows e. root is the container's root directory.
func (v *view) add(e entry, root int, skeleton string) error {
	if e.link != "" {
		if done, err := linkIn(root, e); done || err != nil {
			return err
		}
	}
	if e.writable || !v.hidden.inParts(e.host) {
		v.mounts = append(v.mounts, e.bind())
		return nil
	}
	if err := makeDir(skeleton, 0o700); err != nil { // no parents: the bundle may be gone, if this took too long
		return err
	}
	for _, t := range v.taken {
		if err := makePoint(filepath.Join(skeleton, strings.TrimPrefix(t.path, e.container)), t.file); err != nil {
			return err
		}
	}
	v.mounts = append(v.mounts, entry{host: skeleton, container: e.container}.bind())
	return v.addParts(e.host, e.container, skeleton)
}

// addParts shows what is not hidden in dir. point is dir's place in the skeleton.
func (v *view) addParts(dir, container, point string) error {
	if err := makeLike(point, dir); err != nil {
		return err
	}
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
		if err := v.addPart(e, f.Type(), filepath.Join(point, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) addPart(e entry, mode fs.FileMode, point string) error {
	late := v.hidden.only[filepath.Dir(e.host)] != nil && !slices.Contains(early, filepath.Base(e.host))
	if mode&fs.ModeSymlink != 0 {
		target, ok := v.hidden.leadsOut(e.host, v.entries)
		if !ok {
			return copyLink(e.host, point)
		}
		e.host = target
	}
	file := isFile(e.host)
	if !file && v.hidden.inParts(e.host) {
		return v.addParts(e.host, e.container, point)
	}
	if err := makePoint(point, file); err != nil {
		return err
	}
	if late && !slices.ContainsFunc(v.taken, func(t mountPoint) bool { return below(t.path, e.container) }) {
		v.late = append(v.late, e)
	} else {
		v.mounts = append(v.mounts, e.bind())
	}
	return nil
}

func makePoint(path string, file bool) error {
	dir := path
	if file {
		dir = filepath.Dir(path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil || !file { //nolint:gosec // as all users may enter it
		return err
	}
	return os.WriteFile(path, nil, 0o644) //nolint:gosec // as above
}

// makeDir makes a directory, which may exist: a shim that was killed may have left it in the bundle.
func makeDir(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, mode); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// makeLike makes a directory with the mode and the owner of another. It may exist.
func makeLike(path, like string) error {
	var stat unix.Stat_t
	if err := unix.Stat(like, &stat); err != nil {
		return &os.PathError{Op: "stat", Path: like, Err: err}
	}
	if err := makeDir(path, 0o700); err != nil {
		return err
	}
	return errors.Join(os.Lchown(path, int(stat.Uid), int(stat.Gid)), unix.Chmod(path, stat.Mode&0o7777))
}

// copyLink makes a link as from is, unless there is a mount point in its place.
func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err == nil {
		err = os.Symlink(target, to)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// linkIn makes the symbolic link of e in the root file system. It returns false if an image has something else there,
// on which the entry is then mounted. No link of an image leads out of root.
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

// bind mounts e as it is. It is private, since what the host mounts there later would not be read-only.
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

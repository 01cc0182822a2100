// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// hiddenDir lies in the bundle, and has for each entry with something to mask
// the directory that is laid over the host's.
const hiddenDir = "host-rootfs"

// Remove removes what Fill made in the bundle.
func Remove(bundle string) error { return os.RemoveAll(filepath.Join(bundle, hiddenDir)) }

// hide is e without what is masked: a read-only overlay of dir, which has a
// whiteout for each, and the host's directory.
//
// A mount on a file, which is how OCI runtimes mask (linux.maskedPaths), would
// not last: the kernel takes it away when the host renames another file over
// it, as passwd does with /etc/shadow, and the container would see the new one.
// The overlay shows the directory's own file system only, so what is mounted in
// it is mounted again: as an overlay too where there is something to mask in it.
func (e hostEntry) hide(masked []string, places []place, dir string) ([]specs.Mount, error) {
	top, err := e.overlay(masked, places, dir)
	if err != nil {
		return nil, err
	}
	inside, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !below(m.Mountpoint, e.host) || hidden(m.Mountpoint, masked), false
	})
	if err != nil {
		return nil, err
	}
	mounts := []specs.Mount{top}
	done := map[string]bool{}
	for i, m := range inside {
		// Of two on one another the upper is seen, and nothing of what lies in the lower.
		if _, err := os.Lstat(m.Mountpoint); done[m.Mountpoint] || errors.Is(err, os.ErrNotExist) {
			continue
		}
		done[m.Mountpoint] = true
		sub := hostEntry{host: m.Mountpoint, container: e.container + strings.TrimPrefix(m.Mountpoint, e.host)}
		b := sub.bind()
		b.Options[0] = "bind" // its own mounts are in mountinfo too, after it
		if within := (Rootfs{masks: masked}).masked(sub); len(within) > 0 {
			if b, err = sub.overlay(within, places, fmt.Sprintf("%s.%d", dir, i)); err != nil {
				return nil, err
			}
		}
		mounts = append(mounts, b)
	}
	return mounts, nil
}

// overlay is e's own file system without what is masked. It has a mount point
// for each of places that lies there: as it is read-only nobody can make it later.
func (e hostEntry) overlay(masked []string, places []place, dir string) (specs.Mount, error) {
	if err := checkAbove(e.host); err != nil {
		return specs.Mount{}, err
	}
	for _, path := range masked {
		if err := whiteOut(e.host, strings.TrimPrefix(path, e.host), dir); err != nil {
			return specs.Mount{}, err
		}
	}
	layers := escapeLower(dir) + ":" + escapeLower(e.host)
	// In a layer of their own: what lies under a whiteout is not looked at.
	points, made := dir+".points", false
	for _, p := range places {
		name, inside := strings.CutPrefix(p.path, e.container)
		if !inside || !hidden(e.host+name, masked) {
			continue
		}
		if err := makePoint(e.host, name, points, p.file); err != nil {
			return specs.Mount{}, err
		}
		made = true
	}
	if made {
		layers = escapeLower(points) + ":" + layers
	}
	return specs.Mount{
		Destination: e.container, Type: "overlay", Source: "host-rootfs",
		Options: []string{"ro", "nosuid", "nodev", "lowerdir=" + layers},
	}, nil
}

func hidden(path string, masked []string) bool {
	for _, m := range masked {
		if path == m || below(path, m) {
			return true
		}
	}
	return false
}

// whiteOut makes a whiteout for name in dir, which is laid over host, and the
// directories above it as they are there: the uppermost one's owner and mode
// are those that an overlay shows.
func whiteOut(host, name, dir string) error {
	for at := range parents(name) {
		if err := likeDir(filepath.Join(host, at), filepath.Join(dir, at)); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, name)
	err := unix.Mknod(path, unix.S_IFCHR, 0)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make whiteout %q: %w", path, err)
	}
	return nil
}

// parents yields the directories above name, "" first.
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, r := range name {
			if r == '/' && !yield(name[:i]) {
				return
			}
		}
	}
}

// likeDir makes a directory with the mode and the owner of another.
func likeDir(like, dir string) error {
	var stat unix.Stat_t
	if err := unix.Stat(like, &stat); err != nil {
		return &os.PathError{Op: "stat", Path: like, Err: err}
	}
	err := os.MkdirAll(filepath.Dir(dir), 0o711) //nolint:gosec // a user of the container's own passes through
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, os.ErrExist) {
		return nil // for the one before
	}
	if err != nil {
		return err
	}
	if err := os.Lchown(dir, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	return unix.Chmod(dir, stat.Mode&0o7777)
}

// escapeLower keeps what has a meaning in mount options from having one
// (fs/overlayfs/params.c).
func escapeLower(path string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(path)
}

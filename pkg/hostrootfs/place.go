// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// place is where in a container something is mounted.
type place struct {
	path string
	file bool // what is mounted is no directory
}

// placesIn is where the configuration or another entry has something in e, or
// in its place.
func (h Rootfs) placesIn(e hostEntry, c *process.Config) []place {
	var places []place
	for _, m := range c.Spec.Mounts {
		at := filepath.Clean(m.Destination)
		if at != e.container && !below(at, e.container) {
			continue
		}
		source := m.Source
		if !filepath.IsAbs(source) {
			source = filepath.Join(c.Bundle, source)
		}
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		places = append(places, place{at, bind && isFile(source)})
	}
	for _, other := range h.entries {
		if below(other.container, e.container) {
			places = append(places, place{other.container, isFile(other.host)})
		}
	}
	return places
}

// isFile is false for what is not there, of which mounting tells.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// giveWay leaves out those of the mounts of e, but for the first, which is of e
// itself, in whose place or above which there is one of places: that is on top.
func (e hostEntry) giveWay(mounts []specs.Mount, places []place) []specs.Mount {
	return slices.DeleteFunc(mounts, func(m specs.Mount) bool {
		return m.Destination != e.container && slices.ContainsFunc(places, func(p place) bool {
			return m.Destination == p.path || below(m.Destination, p.path)
		})
	})
}

// makePoint makes a mount point for name in dir, which is laid over host, and the
// directories above it as they are there, if they are.
func makePoint(host, name, dir string, file bool) error {
	const mode = 0o755
	for at := range parents(name) {
		err := likeDir(filepath.Join(host, at), filepath.Join(dir, at))
		if errors.Is(err, os.ErrNotExist) {
			if err = os.MkdirAll(filepath.Join(dir, at), mode); err == nil {
				err = os.Chmod(filepath.Join(dir, at), mode) // whatever the umask is
			}
		}
		if err != nil {
			return err
		}
	}
	path := filepath.Join(dir, name)
	if !file {
		return os.MkdirAll(path, mode)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return err
	}
	return f.Close()
}

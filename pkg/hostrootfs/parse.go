// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/settings"
)

// Words in settings.
const (
	Off         = "off"
	defaultWord = "default"
	noMask      = "none"
)

// defaultDirs are those that Nomad gives a task in a chroot, where they exist.
var defaultDirs = []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr"}

func refuse(v settings.Value, allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", v.Key, v.Text, allowed, errdefs.ErrInvalidArgument)
}

// entry is a directory or a file of the host, and its place in the container.
type entry struct {
	host      string // without symbolic links once findEntries has looked
	container string
	writable  bool
	optional  bool   // left out where the host has no such thing
	link      string // not empty: show a symbolic link with this target instead
}

// parseList reads the value of host-rootfs: default or host[:container][:rw], separated by commas.
func parseList(s settings.Value) ([]entry, error) {
	var list []entry
	for element := range strings.SplitSeq(s.Text, ",") {
		if element == defaultWord {
			for _, dir := range defaultDirs {
				list = append(list, entry{host: dir, container: dir, optional: true})
			}
			continue
		}
		e, ok := parseEntry(element)
		if !ok {
			return nil, refuse(s, fmt.Sprintf("%s, %s, or a list, with commas, of %[2]s and host[:container][:rw] with "+
				"absolute paths other than / and without . and .., which %[3]q is not", Off, defaultWord, element))
		}
		list = append(list, e)
	}
	seen := map[string]bool{}
	for _, e := range list {
		if seen[e.container] {
			return nil, refuse(s, fmt.Sprintf("a list with one entry for %q, not two", e.container))
		}
		seen[e.container] = true
	}
	return list, nil
}

func parseEntry(element string) (entry, bool) {
	parts := strings.Split(element, ":")
	e := entry{host: parts[0], container: parts[0]}
	parts = parts[1:]
	if n := len(parts); n > 0 && (parts[n-1] == "rw" || parts[n-1] == "ro") {
		e.writable, parts = parts[n-1] == "rw", parts[:n-1]
	}
	if len(parts) > 0 {
		e.container, parts = parts[0], parts[1:]
	}
	return e, len(parts) == 0 && validPath(e.host) && validPath(e.container)
}

func validPath(path string) bool {
	return filepath.IsAbs(path) && path != "/" && filepath.Clean(path) == path && !strings.ContainsRune(path, 0)
}

// findEntries looks for each entry on the host. One that is a link there, such as /bin where /usr is merged, is the
// same link in the container if that shows what it leads to.
func findEntries(s settings.Value, list []entry) ([]entry, error) {
	var entries []entry
	for _, e := range list {
		path, err := filepath.EvalSymlinks(e.host)
		if e.optional && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w: %w", s.Key, s.Text, err, errdefs.ErrInvalidArgument)
		}
		if path == "/" {
			return nil, refuse(s, fmt.Sprintf("a list without links to /, which %q is", e.host))
		}
		if link, err := os.Readlink(e.host); err == nil && e.container == e.host && showsInPlace(list, path) {
			e.link = link
		}
		e.host = path
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return strings.Count(a.container, "/") - strings.Count(b.container, "/")
	})
	return entries, nil
}

// showsInPlace reports whether an entry shows path, which has no links, under the same path.
func showsInPlace(list []entry, path string) bool {
	return slices.ContainsFunc(list, func(e entry) bool { return e.host == e.container && within(path, e.host) })
}

// parseMasks reads the value of host-rootfs.mask. An element is defaultWord or a pattern.
func parseMasks(s settings.Value) ([]string, error) {
	switch {
	case !s.IsSet():
		return []string{defaultWord}, nil
	case s.Text == noMask:
		return nil, nil
	}
	masks := strings.Split(s.Text, ",")
	for _, pattern := range masks {
		if _, err := filepath.Match(pattern, ""); pattern != defaultWord && (err != nil || !validPath(pattern)) {
			return nil, refuse(s, fmt.Sprintf("%s, or a list, with commas, of %s and absolute paths of the host, in which "+
				"* ? and [] match as in a shell; %q is none", noMask, defaultWord, pattern))
		}
	}
	return masks, nil
}

// below reports whether path lies in dir. Both are clean.
func below(path, dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }

func within(path, dir string) bool { return path == dir || below(path, dir) }

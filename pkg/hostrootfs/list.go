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
)

// Words that stand for lists.
const (
	Off               = "off" // asks for nothing
	hostRootfsDefault = "default"
	maskNone          = "none"
)

// defaultHostDirs are those that Nomad gives a task in a chroot, where there
// are such.
var defaultHostDirs = []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr"}

// defaultMasks are what in these only root of the host may know: passwords and
// keys of its users, its network and its place in a cluster. They are patterns
// of path/filepath. Where the image of the host has its /etc in /usr, a pattern
// that stands for more than one path keeps /usr from being an overlay on others.
var defaultMasks = []string{
	"/etc/shadow", "/etc/shadow-", "/etc/shadow+", "/etc/gshadow", "/etc/gshadow-", "/etc/gshadow+", "/etc/nshadow",
	"/etc/security/opasswd", "/usr/etc/*shadow",
	"/etc/ssh/ssh_host_*_key", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt/archive", "/etc/letsencrypt/live",
	"/etc/krb5.keytab", "/etc/credstore", "/etc/credstore.encrypted", "/etc/cryptsetup-keys.d",
	"/etc/NetworkManager/system-connections", "/etc/netplan", "/etc/wpa_supplicant", "/etc/ppp/pap-secrets", "/etc/ppp/chap-secrets",
	"/etc/ipsec.secrets", "/etc/ipsec.d/private", "/etc/swanctl", "/etc/openvpn", "/etc/wireguard",
	"/etc/kubernetes", "/etc/rancher", "/etc/cni/net.d",
}

// askedEntry is one element of the list.
type askedEntry struct {
	host, container string
	write           bool
	optional        bool // left out where the host has no such thing
}

// parseHostList reads the value of host-rootfs: elements host[:container][:rw],
// or default, with commas between them.
func parseHostList(s Setting) ([]askedEntry, error) {
	var list []askedEntry
	for element := range strings.SplitSeq(s.Text, ",") {
		if element == hostRootfsDefault {
			for _, dir := range defaultHostDirs {
				list = append(list, askedEntry{host: dir, container: dir, optional: true})
			}
			continue
		}
		e, ok := parseHostEntry(element)
		if !ok {
			return nil, s.refuse(fmt.Sprintf("%s, %s, or a list, with commas, of %[2]s and host[:container][:rw] with absolute paths other than / and without . and .., which %[3]q is not", Off, hostRootfsDefault, element))
		}
		list = append(list, e)
	}
	seen := map[string]bool{}
	for _, e := range list {
		if seen[e.container] {
			return nil, s.refuse(fmt.Sprintf("a list with one entry for %q, not two", e.container))
		}
		seen[e.container] = true
	}
	return list, nil
}

func parseHostEntry(element string) (askedEntry, bool) {
	parts := strings.Split(element, ":")
	e := askedEntry{host: parts[0], container: parts[0]}
	parts = parts[1:]
	if n := len(parts); n > 0 && (parts[n-1] == "rw" || parts[n-1] == "ro") {
		e.write, parts = parts[n-1] == "rw", parts[:n-1]
	}
	if len(parts) > 0 {
		e.container, parts = parts[0], parts[1:]
	}
	return e, len(parts) == 0 && validPath(e.host) && validPath(e.container)
}

func validPath(path string) bool {
	return filepath.IsAbs(path) && path != "/" && filepath.Clean(path) == path && !strings.ContainsRune(path, 0)
}

// findHostEntries looks for each on the host. Where it is a link there, as /bin
// is where /usr is merged, it is one in the container if that has what it leads
// to.
func findHostEntries(s Setting, asked []askedEntry) ([]hostEntry, error) {
	var entries []hostEntry
	for _, a := range asked {
		real, err := filepath.EvalSymlinks(a.host)
		if a.optional && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w: %w", s.Key, s.Text, err, errdefs.ErrInvalidArgument)
		}
		if real == "/" {
			return nil, s.refuse(fmt.Sprintf("a list without links to /, which %q is", a.host))
		}
		e := hostEntry{host: real, container: a.container, write: a.write}
		if link, err := os.Readlink(a.host); err == nil && a.container == a.host && covered(asked, real) {
			e.link = link
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b hostEntry) int {
		return strings.Count(a.container, "/") - strings.Count(b.container, "/")
	})
	return entries, nil
}

// covered tells whether path, which is no link, has its own place in the
// container.
func covered(asked []askedEntry, path string) bool {
	return slices.ContainsFunc(asked, func(a askedEntry) bool {
		return a.host == a.container && (path == a.host || below(path, a.host))
	})
}

// parseMasks reads the value of host-rootfs.mask.
func parseMasks(s Setting) ([]string, error) {
	switch {
	case !s.Asked:
		return defaultMasks, nil
	case s.Text == maskNone:
		return nil, nil
	}
	var masks []string
	for element := range strings.SplitSeq(s.Text, ",") {
		if element == hostRootfsDefault {
			masks = append(masks, defaultMasks...)
			continue
		}
		if _, err := filepath.Match(element, ""); err != nil || !validPath(element) {
			return nil, s.refuse(fmt.Sprintf("%s, or a list, with commas, of %s and absolute paths of the host, in which * ? and [] match as in a shell; %q is none", maskNone, hostRootfsDefault, element))
		}
		masks = append(masks, element)
	}
	return masks, nil
}

// findMasked is what the host has of the patterns: each by its own path, without
// links, and what it leads to if it is one.
func findMasked(patterns []string) []string {
	var found []string
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(pattern) // parseMasks has checked the pattern
		for _, match := range matches {
			if dir, err := filepath.EvalSymlinks(filepath.Dir(match)); err == nil {
				found = append(found, filepath.Join(dir, filepath.Base(match)))
			}
			if real, err := filepath.EvalSymlinks(match); err == nil {
				found = append(found, real)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// outermost leaves out what lies in another path of the list, and is hidden with
// that.
func outermost(paths []string) []string {
	slices.Sort(paths)
	paths = slices.Compact(paths)
	all := slices.Clone(paths)
	return slices.DeleteFunc(paths, func(path string) bool {
		return slices.ContainsFunc(all, func(other string) bool { return below(path, other) })
	})
}

// findAbsent is where the host will have those of patterns that stand for one
// path and are not there yet: the first element of the path that is missing. A
// host gets its secrets at any time, as /etc/shadow- with the first passwd.
func findAbsent(patterns []string) []string {
	var absent []string
	for _, path := range patterns {
		if strings.ContainsAny(path, `*?[\`) {
			continue
		}
		for {
			dir, err := filepath.EvalSymlinks(filepath.Dir(path))
			if err == nil {
				path = filepath.Join(dir, filepath.Base(path))
				if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
					absent = append(absent, path)
				}
				break
			}
			if path = filepath.Dir(path); path == "/" {
				break
			}
		}
	}
	slices.Sort(absent)
	return slices.Compact(absent)
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/settings"
)

const (
	off         = "off"
	defaultWord = "default"
	noMask      = "none"
)

// defaultDirs are those of Nomad's tasks in a chroot.
var defaultDirs = []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr"}

func refuse(v settings.Value, format string, args ...any) error {
	return v.Refuse(fmt.Sprintf(format, args...))
}

// parse checks the settings, and looks for their paths on the host.
func parse(values settings.Values) (h Rootfs, err error) {
	list := values.Of("host-rootfs")
	masked, err := parseMask(values.Of("host-rootfs.mask"))
	if err != nil || !list.IsSet() || list.Text == off {
		return Rootfs{}, err
	}
	h = Rootfs{setting: list, hidden: newHidden(masked)}
	requested, err := parseList(list)
	if err == nil {
		h.entries, err = findEntries(list, requested)
	}
	if err != nil {
		return Rootfs{}, err
	}
	for _, e := range h.entries {
		if e.writable && h.hidden.anyIn(e.host) {
			return Rootfs{}, refuse(list, "a list in which %q is read-only, since host-rootfs.mask hides files there", e.host)
		}
	}
	return h, nil
}

// entry is a directory or a file of the host, and its place in the container.
type entry struct {
	host      string // without symbolic links once findEntries has looked
	container string
	writable  bool
	optional  bool   // left out if the host does not have it
	link      string // not empty: show a symbolic link with this target instead
}

// parseList reads default or host[:container][:ro|:rw], separated by commas.
func parseList(s settings.Value) ([]entry, error) {
	var list []entry
	for element := range strings.SplitSeq(s.Text, ",") {
		element = strings.TrimSpace(element)
		if element == defaultWord {
			for _, dir := range defaultDirs {
				list = append(list, entry{host: dir, container: dir, optional: true})
			}
			continue
		}
		e, ok := parseEntry(element)
		if !ok {
			return nil, refuse(s, "%s, %s, or a list, with commas, of %[2]s and host[:container][:ro|:rw] with "+
				"absolute paths other than / and without . and .., which %[3]q is not", off, defaultWord, element)
		}
		list = append(list, e)
	}
	seen := map[string]bool{}
	for _, e := range list {
		if seen[e.container] {
			return nil, refuse(s, "a list with one entry for %q, not two", e.container)
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

// findEntries looks for each entry on the host. A link, such as /bin where /usr is merged, becomes the same link in
// the container if its target is shown.
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
			return nil, refuse(s, "a list without links to /, which %q is", e.host)
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

// parseMask reads the value of host-rootfs.mask.
func parseMask(s settings.Value) (hides bool, err error) {
	switch {
	case !s.IsSet(), s.Text == defaultWord:
		return true, nil
	case s.Text == noMask:
		return false, nil
	}
	return false, refuse(s, "%s or %s", defaultWord, noMask)
}

// below reports whether path lies in dir. Both are clean.
func below(path, dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }

func within(path, dir string) bool { return path == dir || below(path, dir) }

// etcFiles are the patterns of the files of /etc that are shown: a list of its secrets could not be complete.
var etcFiles = []string{
	"passwd", "group", // users
	"hosts", "host.conf", "resolv.conf", "nsswitch.conf", "gai.conf", "services", "protocols", // names in networks
	"ssl/certs", "ssl/cert.pem", "ssl/ca-bundle.pem", "ssl/openssl.cnf", "ca-certificates/extracted", // TLS
	"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/tls/openssl.d", "pki/ca-trust", "pki/java",
	"crypto-policies", "gnutls",
	"krb5.conf", "krb5.conf.d", "ssh/ssh_config", "ssh/ssh_config.d", "ssh/ssh_known_hosts", // clients
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-*.path", // the dynamic linker
	"locale.alias", "locale.conf", "localtime", "timezone", "terminfo", "inputrc", // locale and terminal
	"profile", "bash.bashrc", "bashrc", // shells
	"pam.d", "authselect", "security/limits.conf", "security/limits.d", // runuser
	"alternatives", "java", "java-*", "perl", "python3*", "fonts", "mime.types", "magic", "mtab", // programs
	"os-release", "*-release", "debian_version",
}

// privateDirs may have secrets too (systemd-creds(1)): files that not all users of the host may read are not shown.
var privateDirs = []string{
	"/usr/etc", "/usr/local/etc", "/usr/lib/credstore", "/usr/lib/credstore.encrypted",
	"/usr/local/lib/credstore", "/usr/local/lib/credstore.encrypted",
}

// hidden is what is not shown of the host. All paths are without links.
type hidden struct {
	paths map[string]bool            // and all that lies in them
	only  map[string]map[string]bool // of a directory, names of the only files to show
}

func newHidden(byDefault bool) hidden {
	h := hidden{paths: map[string]bool{}, only: map[string]map[string]bool{}}
	if !byDefault {
		return h
	}
	if etc, err := filepath.EvalSymlinks("/etc"); err == nil {
		h.showOnly(etc, etc, etcFiles)
	}
	for _, dir := range privateDirs {
		h.hidePrivate(dir)
	}
	return h
}

// showOnly hides the files of dir that match none of patterns, which are relative to top, or that not all users may
// read.
func (h hidden) showOnly(top, dir string, patterns []string) {
	files, _ := os.ReadDir(dir) // what cannot be read is not shown
	h.only[dir] = map[string]bool{}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		name := path[len(top)+1:]
		if slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) }) {
			h.only[dir][f.Name()] = true
			h.hidePrivate(path)
		} else if f.IsDir() && slices.ContainsFunc(patterns, func(p string) bool { return below(p, name) }) {
			h.only[dir][f.Name()] = true
			h.showOnly(top, path, patterns)
		}
	}
}

func matches(pattern, name string) bool {
	ok, _ := filepath.Match(pattern, name) // the patterns are constant and valid
	return ok
}

// hidePrivate hides what not all users of the host may read of path, or of the target of a link.
func (h hidden) hidePrivate(path string) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return
	}
	_ = filepath.WalkDir(path, func(path string, f fs.DirEntry, err error) error { // the function returns no other error
		const read, enter = 0o004, 0o001
		if err != nil || f.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		info, err := f.Info()
		if err == nil && info.Mode()&read != 0 && (!f.IsDir() || info.Mode()&enter != 0) {
			return nil
		}
		h.paths[path] = true
		if f.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// shows reports whether a file is shown where its directory is.
func (h hidden) shows(path string) bool {
	only, ok := h.only[filepath.Dir(path)]
	return (!ok || only[filepath.Base(path)]) && !h.paths[path]
}

// anyIn reports whether something is hidden in dir.
func (h hidden) anyIn(dir string) bool {
	for path := range h.paths {
		if below(path, dir) {
			return true
		}
	}
	for path := range h.only {
		if within(path, dir) {
			return true
		}
	}
	return false
}

// leadsOut returns the target of a link in /etc unless the container has that: /etc/resolv.conf often leads to /run.
// Targets in /proc are about the process that looks.
func (h hidden) leadsOut(link string, entries []entry) (target string, ok bool) {
	target, err := filepath.EvalSymlinks(link)
	if h.only[filepath.Dir(link)] == nil || err != nil || within(target, "/proc") || h.paths[target] {
		return "", false
	}
	for path := target; path != "/"; path = filepath.Dir(path) {
		if !h.shows(path) {
			return target, true
		}
	}
	return target, !showsInPlace(entries, target)
}

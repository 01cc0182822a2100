// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// parseWith is parse of annotations, pairs of a name and a value, and of options.
func parseWith(t *testing.T, options options.Options, pairs ...string) (Rootfs, error) {
	t.Helper()
	table := settings.Table(Extension().Settings)
	spec := &specs.Spec{Annotations: map[string]string{}}
	for pair := range slices.Chunk(pairs, 2) {
		spec.Annotations[settings.Prefix+pair[0]] = pair[1]
	}
	options.AllowUnsafeAnnotations = table.Unsafe()
	set, err := table.Parse(spec, options, "ns", "c1")
	must(t, err)
	return parse(set.Values)
}

func parseText(t *testing.T, list string) (Rootfs, error) {
	t.Helper()
	return parseWith(t, options.Options{}, "host-rootfs", list)
}

func TestParseList(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []entry
	}{
		{"/usr", []entry{{host: "/usr", container: "/usr"}}},
		{"/usr:/u", []entry{{host: "/usr", container: "/u"}}},
		{"/usr:rw", []entry{{host: "/usr", container: "/usr", writable: true}}},
		{"/usr:/u:ro,/a:/b:rw", []entry{{host: "/usr", container: "/u"}, {host: "/a", container: "/b", writable: true}}},
	} {
		got, err := parseList(settings.Value{Key: "key", Text: tc.text})
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(entry{})); err != nil || diff != "" {
			t.Errorf("parseList(%q) = %v, %s", tc.text, err, diff)
		}
	}
	for _, text := range []string{"default,/opt", "default, /opt"} {
		got, err := parseList(settings.Value{Key: "key", Text: text})
		if err != nil || len(got) != len(defaultDirs)+1 || !got[0].optional || got[len(got)-1].optional {
			t.Errorf("parseList(%s) = %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]bool{"": true, "default": true, "none": false} {
		if hides, err := parseMask(settings.Value{Key: "key", Text: text}); err != nil || hides != want {
			t.Errorf("parseMask(%q) = %t, %v", text, hides, err)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	for _, text := range []string{"usr", "/", "/usr:/", "/usr/", "/usr/../etc", "/usr:u", "/usr:/u:x", "/usr:/u:rw:rw", "/a:/b:/c", "default:rw", "/usr,", ",", "/usr:", "/a\x00b", "off,/usr", "Default"} {
		_, err := parseList(settings.Value{Key: "key", Text: text})
		wantInvalid(t, err, "host[:container][:ro|:rw]", "default", "off")
	}
	for _, text := range []string{"/a,/a", "/a:/b,/b", "/usr,default"} {
		_, err := parseList(settings.Value{Key: "key", Text: text})
		wantInvalid(t, err, "one entry")
	}
	for _, text := range []string{"etc", "/etc", "none,default", "default,/etc/x"} {
		_, err := parseMask(settings.Value{Key: "key", Text: text})
		wantInvalid(t, err, "default or none")
	}
}

func TestDefaults_AreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/executors.md")
	must(t, err)
	between := func(from, to string) string {
		_, rest, found := strings.Cut(string(text), from)
		part, _, ends := strings.Cut(rest, to)
		if !found || !ends {
			t.Fatalf("docs/executors.md has no %q with %q after it", from, to)
		}
		return part
	}
	paths := func(part string) []string {
		return strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune("`, \n", r) })
	}
	for from, want := range map[string][]string{"of `/etc` only these:": etcFiles, "may read are hidden:": privateDirs} {
		part := between(from, "`.")
		got := paths(strings.ReplaceAll(part[strings.Index(part, "`"):], " and ", " "))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s docs/executors.md (+) differs from the code (-):\n%s", from, diff)
		}
	}
	if diff := cmp.Diff(defaultDirs, paths(between("in a chroot: `", "`"))); diff != "" {
		t.Errorf("directories in docs/executors.md (+) are not those of the code (-):\n%s", diff)
	}
}

func FuzzParseList(f *testing.F) {
	for _, seed := range []string{"default", "/usr:/u:rw,/etc", "/a:/b:/c", ":::", "/usr/../x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseList(settings.Value{Key: "key", Text: text})
		if err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", text, err)
		}
		for _, e := range list {
			for _, path := range []string{e.host, e.container} {
				if !filepath.IsAbs(path) || strings.Contains(path, "/..") && filepath.Clean(path) != path {
					t.Errorf("%q: entry %+v", text, e)
				}
			}
		}
	})
}

// host is a directory like that of a host whose /usr is merged.
func host(t *testing.T) string {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for _, dir := range []string{"usr/bin", "etc/ssl/private", "opt"} {
		must(t, os.MkdirAll(filepath.Join(top, dir), 0o755))
	}
	must(t, os.Chmod(filepath.Join(top, "etc/ssl"), 0o750))
	must(t, os.Chown(filepath.Join(top, "etc/ssl"), 7, 8))
	for _, file := range []string{"usr/bin/true", "etc/shadow", "etc/passwd", "etc/key_a", "etc/key_b", "etc/ssl/private/k"} {
		must(t, os.WriteFile(filepath.Join(top, file), []byte(file), 0o600))
	}
	must(t, os.Symlink("usr/bin", filepath.Join(top, "bin")))
	return top
}

func TestParse_LinksStayLinks(t *testing.T) {
	h := host(t)
	bin, usr := h+"/bin", h+"/usr"
	for _, tc := range []struct {
		name, list string
		want       []entry
	}{
		{"where it leads is there too", bin + "," + usr, []entry{{host: usr + "/bin", container: bin, link: "usr/bin"}, {host: usr, container: usr}}},
		{"where it leads is not", bin, []entry{{host: usr + "/bin", container: bin}}},
		{"where it leads is elsewhere", bin + "," + usr + ":/usr", []entry{{host: usr, container: "/usr"}, {host: usr + "/bin", container: bin}}},
		{"it is wanted under another name", bin + ":/b," + usr, []entry{{host: usr + "/bin", container: "/b"}, {host: usr, container: usr}}},
		{"a parent comes first", usr + "/bin:/x/bin," + usr + ":/x", []entry{{host: usr, container: "/x"}, {host: usr + "/bin", container: "/x/bin"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseText(t, tc.list)
			if diff := cmp.Diff(tc.want, got.entries, cmp.AllowUnexported(entry{})); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	_, err := parseText(t, h+"/none")
	wantInvalid(t, err, h+"/none", "no such file")
	must(t, os.Symlink("/", h+"/all"))
	_, err = parseText(t, h+"/all:rw")
	wantInvalid(t, err, h+"/all", "links to /")
	_, err = parseText(t, "/etc:/e:rw")
	wantInvalid(t, err, "/etc", "host-rootfs.mask")
	off, err := parseText(t, "off")
	if err != nil || len(off.entries) > 0 {
		t.Errorf("off = %v, %v, want none", off, err)
	}
	all, err := parseText(t, "default")
	if err != nil || len(all.entries) == 0 {
		t.Errorf("default: %v, %v, want the default list", all, err)
	}
}

func TestInsertMount(t *testing.T) {
	for _, tc := range []struct{ name, there, add, want string }{
		{"behind what it lies in", "/proc /run /dev", "/run/x", "/proc /run /run/x /dev"},
		{"before what lies in it", "/proc /etc/hosts", "/etc", "/etc /proc /etc/hosts"},
		{"before its like, which is seen", "/proc /etc", "/etc", "/etc /proc /etc"},
		{"behind a parent with a slash", "/run/ /dev", "/run/x", "/run/ /run/x /dev"},
		{"a name that begins alike is no parent", "/ru /dev", "/run", "/run /ru /dev"},
	} {
		var mounts []specs.Mount
		for d := range strings.FieldsSeq(tc.there) {
			mounts = append(mounts, specs.Mount{Destination: d})
		}
		var got []string
		for _, m := range insertMount(mounts, specs.Mount{Destination: tc.add}) {
			got = append(got, m.Destination)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, want %s", tc.name, got, tc.want)
		}
	}
}

// What the runtime masks must not be mounted over its mask.
func TestPrepare_LeavesMaskedPathsMasked(t *testing.T) {
	h := parsed(t, "default")
	spec := &specs.Spec{Linux: &specs.Linux{MaskedPaths: []string{"/etc/mime.types/", "/usr"}}}
	c := process.Config{Bundle: t.TempDir(), Rootfs: t.TempDir(), Spec: spec, Mounts: make([]event.Mount, 1)}
	must(t, h.Prepare(t.Context(), &c))
	masked := func(m specs.Mount) bool { return m.Destination == "/etc/mime.types" || m.Destination == "/usr" }
	if slices.ContainsFunc(h.binds, masked) || len(h.binds) == 0 {
		t.Errorf("checked: %v", h.binds)
	}
	must(t, h.Removed())
	if got := files(t, c.Bundle); got != "" {
		t.Errorf("the bundle has %s", got)
	}
}

func TestIsMasked(t *testing.T) {
	for path, want := range map[string]bool{"/masked": true, "/masked/in": true, "/maskednot": false, "/": false} {
		if got := isMasked(path, []string{"/masked/"}); got != want {
			t.Errorf("isMasked(%s) = %t, want %t", path, got, want)
		}
	}
}

// files lists a directory.
func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantInvalid(t *testing.T, err error, text ...string) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("error = %v, want an invalid argument", err)
	}
	for _, w := range text {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}

// A client may name the bundle by a link, such as /var/run.
func TestPrepare_OfABundleBehindALink(t *testing.T) {
	h := parsed(t, "default")
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "run"), 0o700))
	must(t, os.Symlink("run", filepath.Join(dir, "link")))
	spec := &specs.Spec{Linux: &specs.Linux{}}
	c := process.Config{Bundle: filepath.Join(dir, "link"), Rootfs: t.TempDir(), Spec: spec, Mounts: make([]event.Mount, 1)}
	must(t, h.Prepare(t.Context(), &c))
	for _, m := range h.binds {
		if strings.HasPrefix(m.Source, dir) {
			if _, err := statAt(unix.AT_FDCWD, m.Source, unix.RESOLVE_NO_SYMLINKS); err != nil {
				t.Errorf("source %q of a mount: %v", m.Source, err)
			}
		}
	}
	must(t, h.Removed())
	if got := files(t, c.Bundle); got != "" {
		t.Errorf("the bundle has %s", got)
	}
}

type ownInit struct{ process.Handle }

func (ownInit) Pid() int { return os.Getpid() }

func TestCreated_RefusesAnotherFileOfTheSameFileSystem(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, file := range []string{a, b} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]error{a: nil, b: errdefs.ErrFailedPrecondition} {
		h := Rootfs{binds: []specs.Mount{{Source: a, Destination: at}}}
		if err := h.Created(t.Context(), nil, ownInit{}); !errors.Is(err, want) {
			t.Errorf("%s at %s: %v, want %v", a, at, err, want)
		}
	}
}

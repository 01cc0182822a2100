// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// parse is Parse of a list and, if there is a second text, of masks.
func parse(list string, mask ...string) (Rootfs, error) {
	return Parse(Setting{Key: "the key", Text: list, Asked: true}, Setting{Text: strings.Join(mask, ","), Asked: len(mask) > 0})
}

func TestHostListsThatAreRead(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []askedEntry
	}{
		{"/usr", []askedEntry{{host: "/usr", container: "/usr"}}},
		{"/usr:/u", []askedEntry{{host: "/usr", container: "/u"}}},
		{"/usr:rw", []askedEntry{{host: "/usr", container: "/usr", write: true}}},
		{"/usr:/u:ro,/a:/b:rw", []askedEntry{{host: "/usr", container: "/u"}, {host: "/a", container: "/b", write: true}}},
	} {
		got, err := parseHostList(Setting{Key: "key", Text: tc.text, Asked: true})
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(askedEntry{})); err != nil || diff != "" {
			t.Errorf("parseHostList(%q) = %v, %s", tc.text, err, diff)
		}
	}
	got, err := parseHostList(Setting{Key: "key", Text: "default,/opt", Asked: true})
	if err != nil || len(got) != len(defaultHostDirs)+1 || !got[0].optional || got[len(got)-1].optional {
		t.Errorf("parseHostList(default,/opt) = %v, %v", got, err)
	}
}

func TestHostListsThatAreRefused(t *testing.T) {
	for _, text := range []string{"usr", "/", "/usr:/", "/usr/", "/usr/../etc", "/usr:u", "/usr:/u:x", "/usr:/u:rw:rw", "/a:/b:/c", "default:rw", "/usr,", ",", "/usr:", "/a\x00b", "off,/usr", "Default"} {
		_, err := parseHostList(Setting{Key: "the key", Text: text, Asked: true})
		wantInvalid(t, err, "the key", "host[:container][:rw]", "default", "off")
	}
	for _, text := range []string{"/a,/a", "/a:/b,/b", "/usr,default"} {
		_, err := parseHostList(Setting{Key: "the key", Text: text, Asked: true})
		wantInvalid(t, err, "the key", "one entry")
	}
	for _, text := range []string{"etc", "/", "/etc/[", "none,/etc", "/etc/"} {
		_, err := parseMasks(Setting{Key: "the key", Text: text, Asked: true})
		wantInvalid(t, err, "the key", "none", "default", "absolute")
	}
}

func TestTheDefaultsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/executors.md")
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
	masks := strings.ReplaceAll(between("By default these are", ".\n  A list of one's own"), " and ", " ")
	if diff := cmp.Diff(defaultMasks, paths(masks)); diff != "" {
		t.Errorf("masks in docs/executors.md (+) are not those of the code (-):\n%s", diff)
	}
	if diff := cmp.Diff(defaultHostDirs, paths(between("in a chroot: `", "`"))); diff != "" {
		t.Errorf("directories in docs/executors.md (+) are not those of the code (-):\n%s", diff)
	}
}

func FuzzHostList(f *testing.F) {
	for _, seed := range []string{"default", "/usr:/u:rw,/etc", "/a:/b:/c", ":::", "/usr/../x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseHostList(Setting{Key: "key", Text: text, Asked: true})
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

func TestWhatIsALinkOnTheHostIsOneInTheContainer(t *testing.T) {
	h := host(t)
	bin, usr := h+"/bin", h+"/usr"
	for _, tc := range []struct {
		name, list string
		want       []hostEntry
	}{
		{"where it leads is there too", bin + "," + usr, []hostEntry{{host: usr + "/bin", container: bin, link: "usr/bin"}, {host: usr, container: usr}}},
		{"where it leads is not", bin, []hostEntry{{host: usr + "/bin", container: bin}}},
		{"where it leads is elsewhere", bin + "," + usr + ":/usr", []hostEntry{{host: usr, container: "/usr"}, {host: usr + "/bin", container: bin}}},
		{"it is wanted under another name", bin + ":/b," + usr, []hostEntry{{host: usr + "/bin", container: "/b"}, {host: usr, container: usr}}},
		{"a parent comes first", usr + "/bin:/x/bin," + usr + ":/x", []hostEntry{{host: usr, container: "/x"}, {host: usr + "/bin", container: "/x/bin"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse(tc.list)
			if diff := cmp.Diff(tc.want, got.entries, cmp.AllowUnexported(hostEntry{})); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	_, err := parse(h + "/none")
	wantInvalid(t, err, "the key", h+"/none", "no such file")
	must(t, os.Symlink("/", h+"/all"))
	_, err = parse(h+"/all:rw", "none")
	wantInvalid(t, err, "the key", h+"/all", "links to /")
	_, err = parse(h+"/etc:rw", h+"/etc/shadow")
	wantInvalid(t, err, "the key", h+"/etc/shadow", "host-rootfs.mask")
	off, err := parse("off")
	if err != nil || len(off.entries) != 0 {
		t.Errorf("off = %v, %v, want none", off, err)
	}
	all, err := parse("default")
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

func TestWhiteouts(t *testing.T) {
	h := host(t)
	dir := filepath.Join(t.TempDir(), "over")
	e := hostEntry{host: h + "/etc", container: "/etc"}
	_, err := e.hide([]string{h + "/etc/shadow", h + "/etc/ssl/private", h + "/etc/key_a"}, nil, dir)
	must(t, err)
	for _, name := range []string{"shadow", "ssl/private", "key_a"} {
		var stat unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, name), &stat))
		if stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != 0 {
			t.Errorf("%s is %o of device %d, want a whiteout", name, stat.Mode, stat.Rdev)
		}
	}
	var stat unix.Stat_t
	must(t, unix.Stat(dir+"/ssl", &stat))
	if stat.Mode&0o7777 != 0o750 || stat.Uid != 7 || stat.Gid != 8 {
		t.Errorf("ssl is %o of %d:%d, want as on the host, 750 of 7:8", stat.Mode&0o7777, stat.Uid, stat.Gid)
	}
}

func TestASecretInAMountIsMaskedToo(t *testing.T) {
	h := host(t)
	for _, dir := range []string{"/etc/ssh", "/etc/ssh/sub", "/etc/gone"} {
		must(t, os.MkdirAll(h+dir, 0o755))
		must(t, unix.Mount("tmpfs", h+dir, "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(h+dir, unix.MNT_DETACH) })
	}
	// One that is covered by another cannot be mounted again.
	must(t, os.Mkdir(h+"/etc/gone/in", 0o755))
	must(t, unix.Mount("tmpfs", h+"/etc/gone/in", "tmpfs", 0, ""))
	must(t, unix.Mount("tmpfs", h+"/etc/gone", "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(h+"/etc/gone", unix.MNT_DETACH) })
	must(t, os.WriteFile(h+"/etc/ssh/key", nil, 0o600))
	dir := filepath.Join(t.TempDir(), "over")
	mounts, err := hostEntry{host: h + "/etc", container: "/c"}.hide([]string{h + "/etc/shadow", h + "/etc/ssh/key"}, nil, dir)
	must(t, err)
	var got []string
	for _, m := range mounts {
		got = append(got, m.Type+" "+m.Destination)
		if m.Destination != "/c/ssh" {
			continue
		}
		lower, _, _ := strings.Cut(strings.TrimPrefix(m.Options[len(m.Options)-1], "lowerdir="), ":")
		var stat unix.Stat_t
		if err := unix.Lstat(lower+"/key", &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
			t.Errorf("%s/key = %o, %v, want a whiteout", lower, stat.Mode, err)
		}
	}
	if want := "overlay /c, overlay /c/ssh, bind /c/ssh/sub, bind /c/gone"; strings.Join(got, ", ") != want {
		t.Errorf("mounts = %v, want %s", got, want)
	}
}

func TestASecretInASecretIsMaskedWithIt(t *testing.T) {
	h := host(t)
	for _, inner := range []string{"k", "later"} {
		masks := h + "/etc/ssl/private," + h + "/etc/ssl/private/" + inner
		got, err := parse(h+"/etc", masks)
		must(t, err)
		dir := filepath.Join(t.TempDir(), "over")
		if _, err := got.place(got.entries[0], nil, -1, dir); err != nil || files(t, dir+"/ssl") != "private" {
			t.Errorf("with %s: %v, whiteouts %s", masks, err, files(t, dir+"/ssl"))
		}
		// Asked for by itself it is seen, without the inner one.
		must(t, os.Chown(h+"/etc/ssl", 0, 0))
		got, err = parse(h+"/etc/ssl/private", masks)
		must(t, err)
		dir = filepath.Join(t.TempDir(), "over")
		if _, err := got.place(got.entries[0], nil, -1, dir); err != nil || files(t, dir) != inner {
			t.Errorf("by itself with %s: %v, whiteouts %s", masks, err, files(t, dir))
		}
	}
}

func TestASecretThatIsNotThereYetIsMasked(t *testing.T) {
	h := host(t)
	must(t, os.Symlink("etc", h+"/link"))
	masks := h + "/etc/shadow-," + h + "/link/a/b/c," + h + "/etc/none_*," + h + "/etc/shadow"
	got, err := parse(h+"/etc", masks)
	must(t, err)
	if diff := cmp.Diff([]string{h + "/etc/a", h + "/etc/shadow-"}, got.absent); diff != "" {
		t.Error(diff)
	}
	dir := filepath.Join(t.TempDir(), "over")
	mounts, err := got.place(got.entries[0], nil, -1, dir)
	must(t, err)
	if names := files(t, dir); len(mounts) != 1 || names != "a shadow shadow-" {
		t.Errorf("mounts %v, whiteouts %s", mounts, names)
	}
	// Who may write there makes it himself.
	got, err = parse(h+"/etc:rw", h+"/etc/shadow-")
	must(t, err)
	if mounts, err := got.place(got.entries[0], nil, -1, dir); err != nil || len(mounts) != 1 || mounts[0].Type != "bind" {
		t.Errorf("to write: %v, %v, want a bind mount", mounts, err)
	}
}

// A link of the image must not lead out of it.
func TestALinkIsMadeInsideOfTheRoot(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	must(t, os.Symlink(outside, filepath.Join(root, "absolute")))
	must(t, os.Symlink(strings.Repeat("../", 500)+outside[1:], filepath.Join(root, "relative")))
	must(t, os.MkdirAll(filepath.Join(root, outside), 0o700))
	must(t, os.Mkdir(filepath.Join(root, "dir"), 0o700))
	must(t, os.Mkdir(filepath.Join(root, "dir/bin"), 0o700))
	must(t, os.Symlink("usr/bin", filepath.Join(root, "dir/same")))
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer func() { _ = unix.Close(fd) }()
	for path, want := range map[string]bool{"/absolute/a": true, "/relative/b": true, "/dir/bin": false, "/dir/same": true, "/none/bin": false, "/top": true} {
		got, err := linkIn(fd, hostEntry{container: path, link: "usr/bin"})
		if err != nil || got != want {
			t.Errorf("linkIn(%s) = %t, %v, want %t", path, got, err, want)
		}
	}
	// The kernel gives up on a path with .. when something is renamed meanwhile.
	other, stop, stopped := t.TempDir(), make(chan struct{}), make(chan struct{})
	go func() { // ends when stop is closed
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(other, other+"x") // there is always one of them
			_ = os.Rename(other+"x", other) // as above
		}
	}()
	for range 5000 {
		if got, err := linkIn(fd, hostEntry{container: "/relative/b", link: "usr/bin"}); err != nil || !got {
			t.Errorf("linkIn(/relative/b) while others rename = %t, %v, want true", got, err)
			break
		}
	}
	close(stop)
	<-stopped
	if got := files(t, outside); got != "" {
		t.Errorf("outside of the root there is %s", got)
	}
	if got := files(t, filepath.Join(root, outside)); got != "a b" {
		t.Errorf("inside there is %q, want a and b", got)
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

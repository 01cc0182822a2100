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

	"sandbox.internal/shim/pkg/settings"
)

// parse is Parse of a list and, if there is a second text, of masks.
func parse(list string, mask ...string) (Rootfs, error) {
	v := settings.Value{Text: strings.Join(mask, ","), ByAnnotation: len(mask) > 0}
	return Parse(settings.Value{Key: "the key", Text: list}, v)
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
	got, err := parseList(settings.Value{Key: "key", Text: "default,/opt"})
	if err != nil || len(got) != len(defaultDirs)+1 || !got[0].optional || got[len(got)-1].optional {
		t.Errorf("parseList(default,/opt) = %v, %v", got, err)
	}
}

func TestParse_Refuses(t *testing.T) {
	for _, text := range []string{"usr", "/", "/usr:/", "/usr/", "/usr/../etc", "/usr:u", "/usr:/u:x", "/usr:/u:rw:rw", "/a:/b:/c", "default:rw", "/usr,", ",", "/usr:", "/a\x00b", "off,/usr", "Default"} {
		_, err := parseList(settings.Value{Key: "the key", Text: text})
		wantInvalid(t, err, "the key", "host[:container][:rw]", "default", "off")
	}
	for _, text := range []string{"/a,/a", "/a:/b,/b", "/usr,default"} {
		_, err := parseList(settings.Value{Key: "the key", Text: text})
		wantInvalid(t, err, "the key", "one entry")
	}
	for _, text := range []string{"etc", "/", "/etc/[", "none,/etc", "/etc/"} {
		_, err := parseMasks(settings.Value{Key: "the key", Text: text})
		wantInvalid(t, err, "the key", "none", "default", "absolute")
	}
}

func TestDefaults_AreDocumented(t *testing.T) {
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
	for from, want := range map[string][]string{"of `/etc` only these:": etcFiles, "sees nothing of these directories that": privateDirs} {
		part := between(from, ".\n")
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
			got, err := parse(tc.list)
			if diff := cmp.Diff(tc.want, got.entries, cmp.AllowUnexported(entry{})); err != nil || diff != "" {
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
	wantInvalid(t, err, "the key", h+"/etc", h+"/etc/shadow", "host-rootfs.mask")
	off, err := parse("off")
	if err != nil || !off.IsEmpty() {
		t.Errorf("off = %v, %v, want none", off, err)
	}
	all, err := parse("default")
	if err != nil || all.IsEmpty() {
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

// show is what a view makes of an entry: its mounts, by destination, and what the skeleton has.
func show(t *testing.T, h Rootfs, taken ...mountPoint) (mounts, late []string, skeleton string) {
	t.Helper()
	skeleton = filepath.Join(t.TempDir(), "bundle", "0")
	v := view{hidden: h.hidden, entries: h.entries, taken: taken}
	must(t, v.add(h.entries[0], -1, skeleton))
	for _, m := range v.mounts {
		mounts = append(mounts, m.Destination)
		if want := "rbind rprivate rro rnosuid rnodev"; m.Type != "bind" || strings.Join(m.Options, " ") != want {
			t.Errorf("mount %+v, want a bind mount with %s", m, want)
		}
	}
	for _, e := range v.late {
		late = append(late, e.container)
	}
	return mounts, late, skeleton
}

func parsed(t *testing.T, list string, mask ...string) Rootfs {
	t.Helper()
	h, err := parse(list, mask...)
	must(t, err)
	return h
}

func TestView_ShowsAllButWhatIsMasked(t *testing.T) {
	h := host(t)
	must(t, os.Symlink("passwd", h+"/etc/link"))
	got, late, skeleton := show(t, parsed(t, h+"/etc:/c", h+"/etc/shadow,"+h+"/etc/key_*,"+h+"/etc/ssl/private"))
	if diff := cmp.Diff([]string{"/c", "/c/passwd"}, got); diff != "" || late != nil {
		t.Errorf("late %v, mounts (-want +got):\n%s", late, diff)
	}
	if got := files(t, skeleton) + ", " + files(t, skeleton+"/ssl"); got != "link passwd ssl, " {
		t.Errorf("the skeleton has %s", got)
	}
	if link, err := os.Readlink(skeleton + "/link"); err != nil || link != "passwd" {
		t.Errorf("the link is %q, %v", link, err)
	}
	var stat unix.Stat_t
	must(t, unix.Stat(skeleton+"/ssl", &stat))
	if stat.Mode&0o7777 != 0o750 || stat.Uid != 7 || stat.Gid != 8 {
		t.Errorf("ssl is %o of %d:%d, want as on the host, 750 of 7:8", stat.Mode&0o7777, stat.Uid, stat.Gid)
	}
}

// What is not masked of an entry is one mount, with all that is mounted in it.
func TestView_IsOneMountWithoutAMask(t *testing.T) {
	h := host(t)
	got, _, _ := show(t, parsed(t, h+"/opt,"+h+"/etc", h+"/etc/shadow"))
	if diff := cmp.Diff([]string{h + "/opt"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestView_LeavesRoomForOtherMounts(t *testing.T) {
	h := host(t)
	must(t, os.Symlink("/elsewhere", h+"/etc/link"))
	got, _, skeleton := show(t, parsed(t, h+"/etc:/c", h+"/etc/shadow,"+h+"/etc/key_*"),
		mountPoint{"/c/passwd", true}, mountPoint{"/c/shadow/deep", false}, mountPoint{"/c/link/file", true}, mountPoint{"/c/ssl", false})
	if diff := cmp.Diff([]string{"/c"}, got); diff != "" {
		t.Error(diff)
	}
	for path, isDir := range map[string]bool{"passwd": false, "shadow/deep": true, "link": true, "link/file": false, "ssl": true} {
		if info, err := os.Lstat(filepath.Join(skeleton, path)); err != nil || info.IsDir() != isDir {
			t.Errorf("%s in the skeleton: %v, %v", path, info, err)
		}
	}
}

func TestHidden_MaskInAMask(t *testing.T) {
	h := host(t)
	for _, inner := range []string{"k", "later"} {
		masks := h + "/etc/ssl/private," + h + "/etc/ssl/private/" + inner
		if _, _, skeleton := show(t, parsed(t, h+"/etc/ssl", masks)); files(t, skeleton) != "" {
			t.Errorf("with %s: the skeleton has %s", masks, files(t, skeleton))
		}
		// An entry for it is shown, without the inner one.
		mounts, _, skeleton := show(t, parsed(t, h+"/etc/ssl/private:/p", masks))
		if want := map[string]string{"k": "/p", "later": "/p /p/k"}[inner]; strings.Join(mounts, " ") != want {
			t.Errorf("by itself with %s: mounts %v, skeleton %s", masks, mounts, files(t, skeleton))
		}
	}
}

func TestHidden_MaskOfWhatIsMadeLater(t *testing.T) {
	h := host(t)
	must(t, os.Symlink("etc", h+"/link"))
	for _, mask := range []string{h + "/etc/shadow-", h + "/link/a/b/c"} {
		if got := parsed(t, h+"/etc", mask).hidden.inParts(h + "/etc"); !got {
			t.Errorf("with %s masked, new files of /etc would be seen", mask)
		}
	}
	if got := parsed(t, h+"/etc", h+"/etc/none_*").hidden.inParts(h + "/etc"); got {
		t.Error("a pattern without a match has /etc shown in parts")
	}
}

func TestHidden_OnlyWhatProgramsNeed(t *testing.T) {
	h := host(t)
	for path, mode := range map[string]os.FileMode{"hosts": 0o644, "group": 0o640, "ssl/certs/a": 0o644, "ssl/certs/key": 0o600, "java-1/x": 0o644, "myapp/token": 0o644, "outside": 0o644, "kubernetes/admin": 0o600} {
		must(t, os.MkdirAll(filepath.Dir(h+"/etc/"+path), 0o755))
		must(t, os.WriteFile(h+"/etc/"+path, nil, mode))
	}
	must(t, os.Symlink(h+"/opt/zone", h+"/etc/localtime"))
	must(t, os.Symlink("outside", h+"/etc/nsswitch.conf"))
	must(t, os.Symlink("/proc/mounts", h+"/etc/mtab"))
	must(t, os.WriteFile(h+"/opt/zone", nil, 0o644))
	rootfs := parsed(t, h+"/etc", "none")
	rootfs.hidden.showOnly(h+"/etc", h+"/etc", etcFiles)
	mounts, late, skeleton := show(t, rootfs)
	all := strings.ReplaceAll(strings.Join(append(mounts, late...), " "), h, "")
	if want := "/etc /etc/ssl/certs/a /etc/hosts /etc/java-1 /etc/localtime /etc/nsswitch.conf"; all != want {
		t.Errorf("mounts %s, want %s", all, want)
	}
	if got, want := files(t, skeleton), "hosts java-1 localtime mtab nsswitch.conf ssl"; got != want {
		t.Errorf("/etc has %s, want %s", got, want)
	}
	rootfs.entries = append(rootfs.entries, entry{host: h + "/opt", container: h + "/opt"})
	if _, _, skeleton = show(t, rootfs); readlink(skeleton+"/localtime") != h+"/opt/zone" {
		t.Error("a link to what the container has is no link")
	}
	named := parsed(t, h+"/etc/myapp", "none")
	named.hidden.showOnly(h+"/etc", h+"/etc", etcFiles)
	if got, _, _ := show(t, named); len(got) != 1 {
		t.Errorf("an entry in /etc is mounted as %v, want it whole", got)
	}
}

func readlink(path string) string {
	target, _ := os.Readlink(path) // "" is no link
	return target
}

// A link of the image must not lead out of it.
func TestLinkIn_StaysInTheRoot(t *testing.T) {
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
		got, err := linkIn(fd, entry{container: path, link: "usr/bin"})
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
		if got, err := linkIn(fd, entry{container: "/relative/b", link: "usr/bin"}); err != nil || !got {
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

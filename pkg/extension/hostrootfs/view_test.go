// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// show is what a view makes of an entry: its mounts, by destination, and what the skeleton has.
func show(t *testing.T, h Rootfs, taken ...mountPoint) (mounts []string, skeleton string) {
	t.Helper()
	dir := t.TempDir()
	made, err := os.OpenRoot(dir)
	must(t, err)
	defer func() { _ = made.Close() }()
	v := view{made: made, hidden: h.hidden, entries: h.entries, taken: taken}
	must(t, v.add(h.entries[0], -1, dir, "0"))
	for _, m := range v.mounts {
		mounts = append(mounts, m.Destination)
		if want := "rbind rprivate rro rnosuid rnodev"; m.Type != "bind" || strings.Join(m.Options, " ") != want {
			t.Errorf("mount %+v, want a bind mount with %s", m, want)
		}
	}
	return mounts, filepath.Join(dir, "0")
}

// parsed is Parse of a list, with these files hidden as well.
func parsed(t *testing.T, list string, hidden ...string) Rootfs {
	t.Helper()
	h, err := parseText(t, list)
	must(t, err)
	for _, path := range hidden {
		h.hidden.paths[path] = true
	}
	return h
}

func TestView_ShowsAllButWhatIsMasked(t *testing.T) {
	h := host(t)
	must(t, os.Symlink("passwd", h+"/etc/link"))
	must(t, os.WriteFile(h+"/etc/large", make([]byte, mostCopied+1), 0o644))
	must(t, os.Chmod(h+"/etc/passwd", 0o604))
	got, skeleton := show(t, parsed(t, h+"/etc:/c", h+"/etc/shadow", h+"/etc/key_a", h+"/etc/key_b", h+"/etc/ssl/private"))
	if diff := cmp.Diff([]string{"/c", "/c/large"}, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if got := files(t, skeleton) + ", " + files(t, skeleton+"/ssl"); got != "large link passwd ssl, " {
		t.Errorf("the skeleton has %s", got)
	}
	if link, err := os.Readlink(skeleton + "/link"); err != nil || link != "passwd" {
		t.Errorf("the link is %q, %v", link, err)
	}
	if text, err := os.ReadFile(skeleton + "/passwd"); string(text) != "etc/passwd" {
		t.Errorf("the copy of a small file has %q, %v", text, err)
	}
	var stat unix.Stat_t
	must(t, unix.Stat(skeleton+"/passwd", &stat))
	if stat.Mode != unix.S_IFREG|0o604 {
		t.Errorf("the mode of the copy is %o, want 604", stat.Mode)
	}
	must(t, unix.Stat(skeleton+"/ssl", &stat))
	if stat.Mode&0o7777 != 0o750 || stat.Uid != 7 || stat.Gid != 8 {
		t.Errorf("ssl is %o of %d:%d, want as on the host, 750 of 7:8", stat.Mode&0o7777, stat.Uid, stat.Gid)
	}
}

// What is not masked of an entry is one mount, with all that is mounted in it.
func TestView_IsOneMountWithoutAMask(t *testing.T) {
	h := host(t)
	got, _ := show(t, parsed(t, h+"/opt,"+h+"/etc", h+"/etc/shadow"))
	if diff := cmp.Diff([]string{h + "/opt"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestView_LeavesRoomForOtherMounts(t *testing.T) {
	h := host(t)
	must(t, os.Symlink("/elsewhere", h+"/etc/link"))
	got, skeleton := show(t, parsed(t, h+"/etc:/c", h+"/etc/shadow", h+"/etc/key_a", h+"/etc/key_b"),
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

func TestHidden_OnlyWhatProgramsNeed(t *testing.T) {
	h := host(t)
	for path, mode := range map[string]os.FileMode{"hosts": 0o644, "group": 0o640, "ssl/certs/a": 0o644, "ssl/certs/key": 0o600, "java-1/x": 0o644, "myapp/token": 0o644, "outside": 0o644, "kubernetes/admin": 0o600} {
		must(t, os.MkdirAll(filepath.Dir(h+"/etc/"+path), 0o755))
		must(t, os.WriteFile(h+"/etc/"+path, nil, mode))
	}
	must(t, os.Symlink(h+"/opt/zone", h+"/etc/localtime"))
	must(t, os.Symlink("outside", h+"/etc/nsswitch.conf"))
	must(t, os.Symlink("/proc/mounts", h+"/etc/mtab"))
	must(t, os.Symlink(h+"/opt/key", h+"/etc/services"))
	must(t, os.Symlink(h+"/opt/roots", h+"/etc/crypto-policies"))
	must(t, os.Mkdir(h+"/opt/roots", 0o755))
	for name, mode := range map[string]os.FileMode{"zone": 0o644, "key": 0o600, "roots/a": 0o644, "roots/key": 0o600} {
		must(t, os.WriteFile(h+"/opt/"+name, nil, mode))
	}
	rootfs := parsed(t, h+"/etc")
	rootfs.hidden.showOnly(h+"/etc", h+"/etc", etcFiles)
	mounts, skeleton := show(t, rootfs)
	all := strings.ReplaceAll(strings.Join(mounts, " "), h, "")
	if want := "/etc /etc/java-1"; all != want {
		t.Errorf("mounts %s, want %s", all, want)
	}
	for dir, want := range map[string]string{
		"": "crypto-policies hosts java-1 localtime mtab nsswitch.conf services ssl", "ssl/certs": "a", "crypto-policies": "a",
	} {
		if got := files(t, filepath.Join(skeleton, dir)); got != want {
			t.Errorf("/etc/%s has %s, want %s", dir, got, want)
		}
	}
	if readlink(skeleton+"/services") == "" || readlink(skeleton+"/mtab") == "" {
		t.Error("a link to a secret or to /proc is no link")
	}
	rootfs.entries = append(rootfs.entries, entry{host: h + "/opt", container: h + "/opt"})
	if _, skeleton = show(t, rootfs); readlink(skeleton+"/localtime") != h+"/opt/zone" {
		t.Error("a link to what the container has is no link")
	}
	named := parsed(t, h+"/etc/myapp")
	named.hidden.showOnly(h+"/etc", h+"/etc", etcFiles)
	if got, _ := show(t, named); len(got) != 1 {
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

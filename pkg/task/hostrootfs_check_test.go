// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

// nobody is a pid that the kernel never gives.
const nobody = 1 << 30

// rootedAt starts a thread that has another root directory, as init of a
// container has, and answers its id. It ends with the test.
func rootedAt(t *testing.T, root string) int {
	t.Helper()
	done, there := make(chan struct{}), make(chan error)
	tid := 0
	go func() { // ends with its thread, when done is closed
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chroot(root)
		}
		tid = unix.Gettid()
		there <- err
		<-done
	}()
	must(t, <-there)
	t.Cleanup(func() { close(done) })
	return tid
}

func TestWhatIsReplacedWhileItIsMountedIsNotSeen(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, after func(dir, secret string) error
		want          string // in the error; empty for none
	}{
		{name: "nothing changes"},
		{name: "by a link", want: "symbolic links", before: func(dir, secret string) error {
			return swap(dir, func() error { return os.Symlink(secret, dir) })
		}},
		{name: "by a link and back", want: "replaced", before: func(dir, secret string) error {
			return swap(dir, func() error { return os.Symlink(secret, dir) })
		}, after: func(dir, _ string) error {
			return errors.Join(os.Remove(dir), os.Rename(dir+".was", dir))
		}},
		{name: "a directory above by a link", want: "symbolic links", before: func(dir, secret string) error {
			above := filepath.Dir(dir)
			return swap(above, func() error { return os.Symlink(filepath.Dir(secret), above) })
		}},
		{name: "it is gone", want: "no such file", after: os.Rename},
	} {
		t.Run(tc.name, func(t *testing.T) {
			top, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			dir, secret := top+"/user/data", top+"/root/data"
			must(t, os.MkdirAll(dir, 0o755))
			must(t, os.MkdirAll(secret, 0o700))
			long := time.Unix(1, 0)
			must(t, os.Chtimes(secret, long, long))
			spec := annotated(annotationHostRootfs, dir+":/data:rw", annotationListen, "unix:///data/socket")
			spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
			spec.Root.Path = t.TempDir()
			engine := &fakeEngine{}
			engine.create = func(c process.Config) error { // mounts by name, as libcontainer
				if tc.before != nil {
					must(t, tc.before(dir, secret))
				}
				at := filepath.Join(c.Rootfs, "data")
				must(t, os.Mkdir(at, 0o755))
				must(t, unix.Mount(dir, at, "", unix.MS_BIND, ""))
				t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
				if tc.after != nil {
					must(t, tc.after(dir, top+"/away"))
				}
				engine.pid = rootedAt(t, c.Rootfs)
				return nil
			}
			s := newManager(t, engine)
			c, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, spec), Options: allowing(options.Options{})})
			if c != nil {
				t.Cleanup(func() {
					must(t, engine.runtimes[0].init.Signal(unix.SIGKILL))
					exit, err := c.Init().Wait(context.WithoutCancel(t.Context()))
					if err != nil {
						t.Errorf("wait = %v, %v", exit, err)
					}
					_, err = s.Delete(context.WithoutCancel(t.Context()), "c1", "")
					must(t, err)
				})
			}
			if info, err := os.Stat(secret); err != nil || !info.ModTime().Equal(long) {
				t.Errorf("something was made in %s, or %v", secret, err)
			}
			if tc.want == "" {
				must(t, err)
				return
			}
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("error %v, want a failed precondition", err)
			}
			wantText(t, err, "host-rootfs", dir, tc.want)
			if n := len(engine.signals); n == 0 || engine.signals[n-1] != unix.SIGKILL {
				t.Errorf("signals to init: %v, want SIGKILL", engine.signals)
			}
		})
	}
}

func TestDirectoriesOfTheHostAreNotRestored(t *testing.T) {
	spec := annotated(annotationHostRootfs, "/usr")
	spec.Root.Path = t.TempDir()
	_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, spec), Checkpoint: "/image", Options: allowing(options.Options{})})
	wantInvalid(t, err, annotationHostRootfs, "/usr", "cannot be restored")
}

func TestWhatIsCoveredIsNotLookedFor(t *testing.T) {
	spec := goodSpec()
	spec.Mounts = []specs.Mount{{Destination: "/mount/"}}
	spec.Linux.MaskedPaths = []string{"/masked/"}
	var mounts []specs.Mount
	for _, at := range []string{"/mount", "/mount/in", "/masked", "/masked/in", "/maskednot"} {
		mounts = append(mounts, specs.Mount{Destination: at, Type: "bind"}, specs.Mount{Destination: at + "/overlay", Type: "overlay"})
	}
	var got []string
	for _, m := range seenBinds(spec, mounts) {
		got = append(got, m.Destination)
	}
	if want := "/mount/in /maskednot"; strings.Join(got, " ") != want {
		t.Errorf("looked for: %v, want %s", got, want)
	}
}

// swap moves dir away and has another made in its place.
func swap(dir string, instead func() error) error {
	if err := os.Rename(dir, dir+".was"); err != nil {
		return err
	}
	return instead()
}

func TestOnlyRootMayWriteAboveWhatIsMaskedIn(t *testing.T) {
	for _, tc := range []struct {
		name     string
		mode     os.FileMode
		uid      int // of the directory above
		owner    int // of the directory itself
		accepted bool
	}{
		{"root's own", 0o755, 0, 0, true},
		{"a user's own in root's", 0o755, 0, 1000, true},
		{"a user's", 0o755, 1000, 0, false},
		{"all may write", 0o777, 0, 0, false},
		{"a group may write", 0o775, 0, 0, false},
		{"sticky, with root's own", 0o777 | os.ModeSticky, 0, 0, true},
		{"sticky, with a user's own", 0o777 | os.ModeSticky, 0, 1000, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := host(t)
			above := h + "/above"
			dir := above + "/dir"
			must(t, os.MkdirAll(dir, 0o755))
			must(t, os.WriteFile(dir+"/secret", nil, 0o600))
			must(t, os.Chmod(above, tc.mode))
			must(t, os.Chown(above, tc.uid, 0))
			must(t, os.Chown(dir, tc.owner, 0))
			_, err := hostEntry{host: dir, container: "/d"}.hide([]string{dir + "/secret"}, nil, filepath.Join(t.TempDir(), "over"))
			if tc.accepted {
				must(t, err)
				return
			}
			wantInvalid(t, err, above, "only root")
		})
	}
}

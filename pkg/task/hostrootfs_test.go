// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

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

// What Create made of a bundle for the engine, and what it left of it.
func createWithHost(t *testing.T, spec *specs.Spec, rootfs []mount.Mount) (c process.Config, s *Manager, bundle string) {
	t.Helper()
	engine := &fakeEngine{pid: nobody}
	s = newManager(t, engine)
	bundle = newBundle(t, spec)
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Rootfs: rootfs, Options: allowing(options.Options{})})
	must(t, err)
	return engine.made[0], s, bundle
}

func TestHostRootfs_Mounts(t *testing.T) {
	h := host(t)
	empty := t.TempDir()
	spec := annotated("host-rootfs", h+"/bin,"+h+"/usr,"+h+"/etc,"+h+"/opt:/o:rw", "host-rootfs.mask", "none")
	spec.Root.Path = empty
	spec.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 1000, Size: 10}}
	c, s, bundle := createWithHost(t, spec, nil)
	if c.Rootfs != filepath.Join(bundle, rootfsDir) {
		t.Errorf("root file system = %s, want it in the bundle", c.Rootfs)
	}
	want := []string{
		h + "/bin bind " + h + "/usr/bin rbind rprivate rro rnosuid rnodev",
		h + "/usr bind " + h + "/usr rbind rprivate rro rnosuid rnodev",
		h + "/etc bind " + h + "/etc rbind rprivate rro rnosuid rnodev",
		"/o bind " + h + "/opt rbind rprivate rw rnosuid rnodev",
	}
	var got []string
	for _, m := range c.Spec.Mounts {
		got = append(got, strings.Join(append([]string{m.Destination, m.Type, m.Source}, m.Options...), " "))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var tmp, root unix.Stat_t
	must(t, unix.Stat(filepath.Join(c.Rootfs, "tmp"), &tmp))
	must(t, unix.Stat(c.Rootfs, &root))
	if tmp.Mode&0o7777 != 0o1777 || tmp.Uid != 1000 || root.Uid != 1000 || root.Mode&0o7777 != 0o755 {
		t.Errorf("/tmp is %o of %d, / %o of %d", tmp.Mode&0o7777, tmp.Uid, root.Mode&0o7777, root.Uid)
	}
	_, err := s.Delete(t.Context(), "c1", "")
	must(t, err)
	if got := files(t, bundle); got != "config.json rootfs" {
		t.Errorf("after Delete the bundle has %s", got)
	}
	if got := files(t, empty); got != "" {
		t.Errorf("the empty directory has %s", got)
	}
}

func TestHostRootfs_FailureLeavesNothing(t *testing.T) {
	full := t.TempDir()
	must(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o600))
	for what, path := range map[string]string{"must be an empty directory": full, "no such file": full + "/none"} {
		spec := annotated("host-rootfs", "default")
		spec.Root.Path = path
		bundle := newBundle(t, spec)
		_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(options.Options{})})
		wantInvalid(t, err, "root.path", path, what)
		if got := files(t, bundle); got != "config.json rootfs" {
			t.Errorf("the bundle has %s", got)
		}
	}
	spec := annotated("host-rootfs", "default")
	spec.Root.Path = t.TempDir()
	bundle := newBundle(t, spec)
	engine := &fakeEngine{create: func(process.Config) error { return errors.New("broken") }}
	_, err := newManager(t, engine).Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(options.Options{})})
	wantText(t, err, "broken")
	if got := files(t, bundle); got != "config.json rootfs" {
		t.Errorf("after a Create that failed the bundle has %s", got)
	}
}

// nobody is a pid that the kernel never gives.
const nobody = 1 << 30

// rootedAt starts a thread that has another root directory, as init of a
// container has, and answers its id. It ends with the test.
func rootedAt(t *testing.T, root string) int {
	t.Helper()
	done, there := make(chan struct{}), make(chan error)
	tid := 0
	var run func()
	run = func() { // ends with its thread, when done is closed
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // whose root is that of /proc/self
			defer runtime.UnlockOSThread()
			go run() // ends as above, and keeps this thread until then
			<-done
			return
		}
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chroot(root)
		}
		tid = unix.Gettid()
		there <- err
		<-done
	}
	go run()
	must(t, <-there)
	t.Cleanup(func() { close(done) })
	return tid
}

func TestHostRootfs_RefusesWhatIsReplacedMeanwhile(t *testing.T) {
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
			spec := annotated("host-rootfs", dir+":/data:rw", "listen", "unix:///data/socket")
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

func TestHostRootfs_IsNotRestored(t *testing.T) {
	spec := annotated("host-rootfs", "/usr")
	spec.Root.Path = t.TempDir()
	_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, spec), Checkpoint: "/image", Options: allowing(options.Options{})})
	wantInvalid(t, err, "host-rootfs", "/usr", "cannot be restored")
}

// swap moves dir away and has another made in its place.
func swap(dir string, instead func() error) error {
	if err := os.Rename(dir, dir+".was"); err != nil {
		return err
	}
	return instead()
}

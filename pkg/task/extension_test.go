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
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

func TestExtensions_FailureLeavesNothing(t *testing.T) {
	dir, full := t.TempDir(), t.TempDir()
	testx.Write(t, full+"/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	testx.Must(t, os.Symlink("passwd", full+"/link"))
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		annotation, value string
		root              string // of the file system; "" for the default
		checkpoint        string
		engine            error
		class             error
		want              []string
	}{
		"a root file system that is not empty":  {"host-rootfs", "default", full, "", nil, errdefs.ErrInvalidArgument, []string{"root.path", full, "must be an empty directory"}},
		"a root file system that is not there":  {"host-rootfs", "default", full + "/none", "", nil, errdefs.ErrInvalidArgument, []string{"root.path", "no such file"}},
		"directories of the host and a failure": {"host-rootfs", "default", dir, "", broken, broken, nil},
		"directories of the host in an image":   {"host-rootfs", "/usr", dir, "/image", nil, errdefs.ErrInvalidArgument, []string{"host-rootfs", "/usr", "cannot be restored"}},
		"an address that is none":               {"listen", "tcp://x", "", "", nil, errdefs.ErrInvalidArgument, []string{"listen", "must be IP:PORT"}},
		"sockets in the host's PID namespace":   {"listen", "tcp://1.2.3.4:5", "", "", nil, errdefs.ErrInvalidArgument, []string{"listen", "needs a PID namespace"}},
		"a pid file that is none":               {"pid-file", full + "/passwd", "", "", nil, errdefs.ErrInvalidArgument, []string{"pid-file", "a pid file that was left"}},
		"a pid file that is a link":             {"pid-file", full + "/link", "", "", nil, errdefs.ErrInvalidArgument, []string{"pid-file", "a pid file that was left"}},
		"a pid file in no directory":            {"pid-file", full + "/none/pid", "", "", nil, errdefs.ErrInvalidArgument, []string{"pid-file", "directory that is there"}},
		"a pid file and a failure":              {"pid-file", dir + "/pid", "", "", broken, broken, nil},
		"readiness and a failure":               {"notify", "true", "", "", broken, broken, nil},
	} {
		t.Run(name, func(t *testing.T) {
			spec := annotated(tc.annotation, tc.value)
			if tc.root != "" {
				spec.Root.Path = tc.root
			}
			bundle := testx.NewBundle(t, spec)
			r := newRuntime()
			r.Fail("create", tc.engine)
			_, err := newManager(t, r).Create(t.Context(), CreateRequest{
				ID: "c1", Bundle: bundle, Checkpoint: tc.checkpoint, Options: allowing(options.Options{}),
			})
			testx.WantError(t, err, tc.class, tc.want...)
			if got := testx.Files(t, bundle) + testx.Files(t, dir); got != "config.json rootfs" {
				t.Errorf("files = %q", got)
			}
		})
	}
}

func TestExtensions_EndWithTheContainer(t *testing.T) {
	t.Chdir(t.TempDir()) // an address has room for 108 bytes
	dir, err := os.Getwd()
	testx.Must(t, err)
	spec := annotated("notify", "true", "listen", "a=unix://"+dir+"/s", "pid-file", dir+"/pid")
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
	spec.Mounts = []specs.Mount{{Destination: dir, Source: dir, Type: "bind"}}
	spec.Process.Env = []string{"LISTEN_PID=7", "A=1", "NOTIFY_SOCKET=/other"}
	r := newRuntime()
	r.PID = os.Getpid() // whose root is that of this process
	m := newManager(t, r)
	c := create(t, m, "c1", spec)
	bundle := c.Init().Status().Bundle
	env := []string{"A=1", "NOTIFY_SOCKET=/run/notify/notify.sock", "LISTEN_FDNAMES=a", "LISTEN_FDS=1", "LISTEN_PID=1"}
	if got := r.Containers()[0].Config.Spec.Process.Env; !slices.Equal(got, env) {
		t.Errorf("environment = %q, want %q", got, env)
	}
	if got := testx.Files(t, dir) + " " + testx.Files(t, bundle+"/notify"); got != "pid s notify.sock" {
		t.Errorf("files = %q", got)
	}
	if state := c.Inspect(0).Notify; state == nil || state.Ready {
		t.Errorf("Notified = %+v, want nothing yet", state)
	}
	remove(t, m, "c1")
	if got := testx.Files(t, dir) + testx.Files(t, bundle); got != "config.json rootfs" {
		t.Errorf("files after Delete = %q", got)
	}
}

// Releases before pkg/extension had fields of their own in the state.
func TestExtensions_OfADeadShimOfAFormerRelease(t *testing.T) {
	bundle, pid := testx.NewBundle(t, goodSpec()), filepath.Join(t.TempDir(), "pid")
	testx.Write(t, pid, "4321")
	testx.Write(t, filepath.Join(bundle, "shim.json"), `{"Root": "/run/r", "Pid": 4321, "PidFile": "`+pid+`"}`)
	_, _, err := cleanUp(t, bundle)
	testx.Must(t, err)
	if testx.Exists(pid) {
		t.Error("the pid file is left")
	}
}

// rootedAt starts a thread that has another root directory, as init of a container has, and answers its id. It ends
// with the test.
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
	testx.Must(t, <-there)
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
			testx.Must(t, err)
			dir, secret := top+"/user/data", top+"/root/data"
			testx.Must(t, os.MkdirAll(dir, 0o755))
			testx.Must(t, os.MkdirAll(secret, 0o700))
			long := time.Unix(1, 0)
			testx.Must(t, os.Chtimes(secret, long, long))
			spec := annotated("host-rootfs", dir+":/data:rw", "listen", "unix:///data/socket")
			spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
			spec.Root.Path = t.TempDir()
			r := newRuntime()
			r.Do("create", func(c process.Config) error { // mounts by name, as libcontainer
				if tc.before != nil {
					testx.Must(t, tc.before(dir, secret))
				}
				at := filepath.Join(c.Rootfs, "data")
				testx.Must(t, os.Mkdir(at, 0o755))
				testx.Must(t, unix.Mount(dir, at, "", unix.MS_BIND, ""))
				t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
				if tc.after != nil {
					testx.Must(t, tc.after(dir, top+"/away"))
				}
				r.PID = rootedAt(t, c.Rootfs)
				return nil
			})
			m := newManager(t, r)
			c, err := m.Create(t.Context(), CreateRequest{ID: "c1", Bundle: testx.NewBundle(t, spec), Options: allowing(options.Options{})})
			if c != nil {
				t.Cleanup(func() {
					_, err := m.Delete(context.WithoutCancel(t.Context()), "c1", "")
					testx.Must(t, err)
				})
			}
			if info, err := os.Stat(secret); err != nil || !info.ModTime().Equal(long) {
				t.Errorf("something was made in %s, or %v", secret, err)
			}
			if tc.want == "" {
				testx.Must(t, err)
				return
			}
			testx.WantError(t, err, errdefs.ErrFailedPrecondition, "host-rootfs", dir, tc.want)
			if !r.Containers()[0].First().Reaped() {
				t.Error("init lives")
			}
		})
	}
}

// swap moves dir away and has another made in its place.
func swap(dir string, instead func() error) error {
	if err := os.Rename(dir, dir+".was"); err != nil {
		return err
	}
	return instead()
}

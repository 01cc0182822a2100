// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

func tmpfs() []mount.Mount { return []mount.Mount{{Type: "tmpfs", Source: "tmpfs"}} }

// request is that for container c1.
func request(bundle string, container func(context.Context, process.Config) error) Request {
	return Request{Namespace: "ns", ID: "c1", Bundle: bundle, Container: container}
}

// removed is a remove for a Request that keeps what it was asked.
func removed(asked *process.Config) func(context.Context, process.Config) error {
	return func(_ context.Context, c process.Config) error {
		*asked = c
		return nil
	}
}

func TestRun_OneContainer(t *testing.T) {
	exit := process.Exit{Status: 3, At: time.Unix(5, 6).UTC()}
	killed := process.Exit{Status: 137} // now
	defaultRoot := options.DefaultRoot + "/ns"
	write := func(name, text string) func(string) error {
		return func(b string) error { return os.WriteFile(filepath.Join(b, name), []byte(text), 0o600) }
	}
	for _, tc := range []struct {
		name    string
		prepare func(bundle string) error
		pid     int
		exit    process.Exit
		want    State // what the removal is asked with
		spec    bool
	}{
		{"a bundle without a record", func(string) error { return nil }, 0, killed, State{Root: defaultRoot}, true},
		{"a record of an init that lived", State{Root: "/r/ns", SystemdCgroup: true, Pid: 7}.Write, 7, killed, State{Root: "/r/ns", SystemdCgroup: true}, true},
		{"a record of an init that exited", State{Root: "/r/ns", Pid: 7, Exit: &exit}.Write, 7, exit, State{Root: "/r/ns"}, true},
		{"a broken record", write(stateFile, "{half"), 0, killed, State{Root: defaultRoot}, true},
		{"a broken configuration", write("config.json", "{half"), 0, killed, State{Root: defaultRoot}, false},
		{"a configuration that Create would refuse", write("config.json", "{}"), 0, killed, State{Root: defaultRoot}, false},
		{"a bundle that is gone", os.RemoveAll, 0, killed, State{Root: defaultRoot}, false},
		{"a root file system that is mounted twice", func(b string) error {
			return errors.Join(mount.All(tmpfs(), filepath.Join(b, "rootfs")), mount.All(tmpfs(), filepath.Join(b, "rootfs")))
		}, 0, killed, State{Root: defaultRoot}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := testx.NewBundle(t, goodSpec())
			testx.Must(t, tc.prepare(bundle))
			for range 2 {
				start := time.Now()
				var asked process.Config
				pid, got, err := request(bundle, removed(&asked)).Run(t.Context())
				testx.Must(t, err)
				if pid != tc.pid || got.Status != tc.exit.Status {
					t.Errorf("pid, status = %d, %d, want %d, %d", pid, got.Status, tc.pid, tc.exit.Status)
				}
				if now := tc.exit.At.IsZero(); now && got.At.Before(start) || !now && !got.At.Equal(tc.exit.At) {
					t.Errorf("exit at %v, want %v, or now", got.At, tc.exit.At)
				}
				if asked.ID != "c1" || asked.Root != tc.want.Root || asked.SystemdCgroup != tc.want.SystemdCgroup || (asked.Spec != nil) != tc.spec {
					t.Errorf("asked to remove %+v, want %+v, spec %t", asked, tc.want, tc.spec)
				}
				if left := testx.MountsBelow(t, bundle); len(left) > 0 {
					t.Errorf("mounts left: %v", left)
				}
			}
		})
	}
}

func TestRun_RefusesIDs(t *testing.T) {
	for _, id := range []string{"", "..", "a/b"} {
		r := request(t.TempDir(), func(context.Context, process.Config) error {
			t.Errorf("id %q reached the runtime", id)
			return nil
		})
		r.ID = id
		_, _, err := r.Run(t.Context())
		testx.WantInvalid(t, err, "id", id)
	}
}

func TestRun_UnmountsAlsoWhereTheContainerStays(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	testx.Must(t, mount.All(tmpfs(), filepath.Join(bundle, "rootfs")))
	testx.Must(t, State{Root: "/r", Pid: 7}.Write(bundle))
	broken := errors.New("broken")
	pid, _, err := request(bundle, func(context.Context, process.Config) error { return broken }).Run(t.Context())
	if !errors.Is(err, broken) || pid != 7 {
		t.Errorf("Remove = %d, %v, want 7, %v", pid, err, broken)
	}
	if left := testx.MountsBelow(t, bundle); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

func TestRun_TakesTurns(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	var inside, calls atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, _, err := request(bundle, func(context.Context, process.Config) error {
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d removals at once", n)
				}
				calls.Add(1)
				inside.Add(-1)
				return nil
			}).Run(t.Context())
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := calls.Load(); got != 8 {
		t.Errorf("%d removals, want 8", got)
	}
}

func TestRun_GivesUpItsTurnWithItsContext(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	unlock, err := lockBundle(t.Context(), bundle)
	testx.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	var asked process.Config
	_, _, err = request(bundle, removed(&asked)).Run(ctx)
	testx.WantError(t, err, context.DeadlineExceeded, bundle)
	if asked.ID != "" {
		t.Error("Run went on without its turn")
	}
	unlock()
	_, _, err = request(bundle, removed(&asked)).Run(t.Context())
	testx.Must(t, err)
}

// What cannot be read now may be read later. Until then nothing is taken for removed: containerd would remove the bundle.
func TestRun_FailsWhereAFileOfTheBundleCannotBeRead(t *testing.T) {
	for _, file := range []string{stateFile, "config.json", "shim.pod.json"} {
		t.Run(file, func(t *testing.T) {
			bundle := testx.NewBundle(t, goodSpec())
			testx.Must(t, State{Root: "/r/ns"}.Write(bundle))
			path := filepath.Join(bundle, file)
			_ = os.Remove(path) // the link is not there
			testx.Must(t, os.Symlink(file, path))
			_, _, err := request(bundle, func(context.Context, process.Config) error {
				t.Error("a container was removed")
				return nil
			}).Run(t.Context())
			testx.WantError(t, err, unix.ELOOP, file)
		})
	}
}

// A file system whose daemon is dead answers nothing that it is asked.
func TestUnmountRootfs_OfAFUSEFileSystemWithoutItsDaemon(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	rootfs := filepath.Join(bundle, "rootfs")
	testx.Must(t, mount.All(tmpfs(), rootfs)) // below it
	daemon, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("SKIPPED: needs FUSE in the kernel")
	}
	testx.Must(t, err)
	testx.Must(t, unix.Mount("none", rootfs, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", daemon.Fd())))
	t.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) }) // if the test fails
	testx.Must(t, daemon.Close())
	if _, err := os.Lstat(rootfs); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("lstat = %v, want %v", err, unix.ENOTCONN)
	}
	testx.Must(t, UnmountRootfs(bundle))
	if left := testx.MountsBelow(t, bundle); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

// A client that makes the bundle itself may have a link there, or mount something below.
func TestUnmountRootfs_BehindALinkAndBelow(t *testing.T) {
	bundle := testx.NewBundle(t, goodSpec())
	rootfs := filepath.Join(bundle, "rootfs")
	testx.Must(t, os.RemoveAll(rootfs))
	testx.Must(t, os.MkdirAll(filepath.Join(bundle, "real/sub"), 0o700))
	testx.Must(t, os.Symlink("real", rootfs))
	testx.Must(t, mount.All(tmpfs(), filepath.Join(bundle, "real/sub")))
	testx.Must(t, UnmountRootfs(bundle))
	if left := testx.MountsBelow(t, bundle); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

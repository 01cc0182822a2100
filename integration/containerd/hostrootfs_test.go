// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const (
	annotationHostRootfs = "io.containerd.sandbox.v1/host-rootfs"
)

// newHostEnv is newEnv with an empty directory, which the test must leave empty.
func newHostEnv(t *testing.T) (e *env, empty string) {
	t.Helper()
	harness.OursOnly(t, "host-rootfs")
	e = newEnv(t)
	e.allow("host-rootfs", "host-rootfs.mask")
	empty = publicDir(t)
	t.Cleanup(func() {
		if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
			t.Errorf("the directory that was empty has %v, %v", left, err)
		}
	})
	return e, empty
}

// hostRun runs a script by the host's shell in a container of the host's directories, to its end.
func (e *env) hostRun(id, empty, list, script string, opts ...oci.SpecOpts) string {
	e.Helper()
	c := e.run(id, config{rootfs: empty, opts: append(with(annotations(annotationHostRootfs, list)), opts...)},
		"/bin/sh", "-c", script)
	c.wantExit(0)
	if got := c.err.String(); got != "" {
		e.Errorf("stderr of %s = %q", id, got)
	}
	return c.out.String()
}

func TestHostRootfs_RunsAProgramWithoutAnImage(t *testing.T) {
	e, empty := newHostEnv(t)
	c := e.run("c1", config{rootfs: empty, opts: with(annotations(annotationHostRootfs, "default"))}, "/bin/sh", "-c",
		`cat /etc/passwd; echo x >/new && echo x >/tmp/new && mkdir /var && echo made; sleep 1000`)
	c.out.WaitFor(t, "made")
	passwd, err := os.ReadFile("/etc/passwd")
	e.must(err, "passwd")
	if got, want := c.out.String(), string(passwd)+"made\n"; got != want {
		t.Errorf("the container printed %q, want %q", got, want)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	e.must(err, "mounts of the host")
	var mine []string
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.Contains(at, e.namespace) {
			mine = append(mine, at)
		}
	}
	if len(mine) != 1 || filepath.Base(mine[0]) != "rootfs" {
		t.Errorf("mounts on the host: %v, want that of the root alone", mine)
	}
	c.kill()
}

func TestHostRootfs_IsReadOnlyNosuidNodevAndPrivate(t *testing.T) {
	e, empty := newHostEnv(t)
	dir := publicDir(t)
	e.must(os.MkdirAll(dir+"/sub/below", 0o755), "make a directory")
	e.must(unix.Mount("tmpfs", dir+"/sub", "tmpfs", 0, ""), "mount in it")
	e.must(unix.Mount("", dir+"/sub", "", unix.MS_SHARED, ""), "let it be shared, as systemd has all mounts")
	t.Cleanup(func() { _ = unix.Unmount(dir+"/sub", unix.MNT_DETACH) })
	e.must(os.WriteFile(dir+"/sub/file", nil, 0o666), "write in the mount")
	got := e.hostRun("c1", empty, "default,"+dir+":/data,"+dir+":/own:rw", `
		for file in /usr/x /etc/x /data/x /data/sub/x /data/sub/file; do (echo >$file) 2>/dev/null && echo "wrote $file"; done
		echo >/own/ours
		cat /proc/self/mountinfo
	`)
	want := map[string]string{
		"/data": "ro", "/data/sub": "ro", "/own": "rw", "/own/sub": "rw", "/usr": "ro", "/etc": "ro",
	}
	for line := range strings.Lines(got) {
		fields := strings.Fields(line)
		if len(fields) < 7 {
			t.Errorf("the container says %q", line)
			continue
		}
		at, options := fields[4], strings.Split(fields[5], ",")
		access, ok := want[at]
		if !ok {
			continue // the runtime's own, or what is mounted in one of these
		}
		for _, option := range []string{access, "nosuid", "nodev"} {
			if !slices.Contains(options, option) {
				t.Errorf("%s is mounted %s, want %s in it", at, fields[5], option)
			}
		}
		if fields[6] != "-" {
			t.Errorf("%s is %s, want it private", at, fields[6])
		}
		delete(want, at)
	}
	if len(want) > 0 {
		t.Errorf("no mounts on %v in %s", want, got)
	}
	if _, err := os.Stat(dir + "/ours"); err != nil {
		t.Errorf("what the container wrote where it may: %v", err)
	}
}

// inSnapshot changes the root file system of a container of an image.
func (e *env) inSnapshot(change func(root string) error) client.NewContainerOpts {
	return func(ctx context.Context, c *client.Client, info *containers.Container) error {
		mounts, err := c.SnapshotService(info.Snapshotter).Mounts(ctx, info.SnapshotKey)
		if err != nil {
			return err
		}
		return mount.WithTempMount(ctx, mounts, change)
	}
}

// An image's links must not lead the host's directories, nor what is made for them, out of its root file system.
func TestHostRootfs_StaysInsideAnImage(t *testing.T) {
	e, _ := newHostEnv(t)
	target := publicDir(t)
	dir := publicDir(t)
	e.must(os.WriteFile(dir+"/file", []byte("of the host\n"), 0o644), "write")
	opts := with(annotations(annotationHostRootfs, dir+":/evil/deep/data,"+dir+":/up/data"))
	c, err := e.tryCreate("c1", config{opts: opts, new: []client.NewContainerOpts{e.inSnapshot(func(root string) error {
		return errors.Join(os.Symlink(target, filepath.Join(root, "evil")),
			os.Symlink("../../../../../../../.."+target, filepath.Join(root, "up")))
	})}}, "cat", target+"/deep/data/file", target+"/data/file")
	if err == nil {
		e.must(c.process.Start(e.ctx), "start")
		c.wantExit(0)
		if got, want := c.out.String(), "of the host\nof the host\n"; got != want {
			t.Errorf("the container printed %q, want %q", got, want)
		}
	} else {
		t.Logf("refused: %v", err)
	}
	if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
		t.Errorf("outside of the image there is %v, %v", left, err)
	}
}

func TestHostRootfs_GoesWithADeadShim(t *testing.T) {
	e, empty := newHostEnv(t)
	c := e.run("c1", hostConfig(empty), "/bin/sh", "-c", "echo ready; sleep 1000")
	c.out.WaitFor(t, "ready")
	e.must(unix.Kill(e.shim("c1"), unix.SIGKILL), "SIGKILL to the shim")
	wantForgotten(t, e, c)
}

func TestHostRootfs_UserNamespace(t *testing.T) {
	letOthersIn(t)
	e, empty := newHostEnv(t)
	got := e.hostRun("c1", empty, "default",
		"id -u; echo x >/x && echo wrote; cat /etc/shadow 2>&1 | sed 's/.*: //'; head -c 5 /etc/passwd\n"+
			"head -c 5 /etc/group; (echo >>/etc/hosts) 2>/dev/null || echo read-only",
		oci.WithUserNamespace(idMap, idMap))
	if want := "0\nwrote\nNo such file or directory\nroot:root:read-only\n"; got != want {
		t.Errorf("the container says %q, want %q", got, want)
	}
}

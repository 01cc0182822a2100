// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// image mounts an image at path.
func image(path, sub string) change {
	return func(c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{
			Image: &runtimeapi.ImageSpec{Image: harness.VolumeImage}, ImageSubPath: sub, ContainerPath: path,
			Readonly: true,
		})
	}
}

func TestVolume_Image(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		a := p.run("a", forever, image("/image", ""), image("/part", "sub"))
		b := p.run("b", forever, image("/image", ""))
		a.wantExec("hello", "cat", "/image/"+harness.Greeting)
		a.wantExec("below", "cat", "/part/file")
		a.wantExec("refused", "sh", "-c", "touch /image/new 2>/dev/null || echo refused")
		a.end()
		a.remove()
		b.wantExec("hello", "cat", "/image/"+harness.Greeting) // the pod's as long as the pod is
		p.remove()
	})
}

func TestVolume_ImageForUsersOfAPod(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", ownUsers)
		c := p.run("c", forever, func(c *runtimeapi.ContainerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{
				Image: &runtimeapi.ImageSpec{Image: harness.VolumeImage}, ContainerPath: "/image", Readonly: true,
				UidMappings: mapping(), GidMappings: mapping(),
			})
		})
		c.wantExec("hello", "cat", "/image/"+harness.Greeting)
		c.wantExec("0", "stat", "-c", "%u", "/image/"+harness.Greeting)
		p.remove()
	})
}

// volumeWithMount is a directory with a tmpfs mounted below it, at sub.
func (e *env) volumeWithMount() string {
	e.Helper()
	dir := e.volume()
	sub := filepath.Join(dir, "sub")
	e.must(os.Mkdir(sub, 0o755), "make a directory")
	e.must(unix.Mount("tmpfs", sub, "tmpfs", 0, ""), "mount a tmpfs")
	e.Cleanup(func() { e.must(unix.Unmount(sub, unix.MNT_DETACH), "unmount the tmpfs") })
	return dir
}

func TestVolume_RecursivelyReadOnly(t *testing.T) {
	eachWay(t, func(e *env) {
		dir := e.volumeWithMount()
		p := e.pod("p")
		c := p.run("c", forever,
			mounted(dir, "/ro", func(m *runtimeapi.Mount) { m.Readonly = true }),
			mounted(dir, "/rro", func(m *runtimeapi.Mount) { m.Readonly, m.RecursiveReadOnly = true, true }))
		c.wantExec("refused", "sh", "-c", "touch /rro/file 2>/dev/null || echo refused")
		c.wantExec("refused", "sh", "-c", "touch /rro/sub/file 2>/dev/null || echo refused")
		c.exec("touch", "/ro/sub/file") // what read-only alone does not keep from
		p.remove()
	})
}

func TestVolume_MountPropagation(t *testing.T) {
	eachWay(t, func(e *env) {
		dir := e.volume()
		e.must(os.Mkdir(filepath.Join(dir, "sub"), 0o755), "make a directory")
		e.must(unix.Mount(dir, dir, "", unix.MS_BIND, ""), "mount the volume on itself")
		e.Cleanup(func() { e.must(unix.Unmount(dir, unix.MNT_DETACH), "unmount the volume") })
		e.must(unix.Mount("", dir, "", unix.MS_SHARED, ""), "share the volume")
		p := e.pod("p")
		travels := func(how runtimeapi.MountPropagation) change {
			return mounted(dir, "/volume", func(m *runtimeapi.Mount) { m.Propagation = how })
		}
		private := p.run("private", forever, travels(runtimeapi.MountPropagation_PROPAGATION_PRIVATE))
		slave := p.run("slave", forever, travels(runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER))
		e.must(unix.Mount("tmpfs", filepath.Join(dir, "sub"), "tmpfs", 0, ""), "mount a tmpfs")
		e.Cleanup(func() { e.must(unix.Unmount(filepath.Join(dir, "sub"), unix.MNT_DETACH), "unmount the tmpfs") })
		e.file("volume/sub/file", "seen")
		slave.wantExec("seen", "cat", "/volume/sub/file")
		private.wantExec("", "ls", "/volume/sub")
		p.remove()
	})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// jumpClock sets the clock of the machine forward, or back, until the test ends.
func jumpClock(t *testing.T, by time.Duration) {
	t.Helper()
	jump := func(by time.Duration) {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			t.Fatal(err)
		}
		then := unix.NsecToTimespec(now.Nano() + by.Nanoseconds())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &then); err != nil {
			t.Fatal(err)
		}
	}
	jump(by)
	t.Cleanup(func() { jump(-by) })
}

// A deadline is a time that passes, and not what a clock shows. Exits have the time of the clock.
func TestNode_ClockJumps(t *testing.T) {
	needNode(t)
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			const limit = 3 * time.Second
			e := newEnv(t)
			c := e.run("c1", config{opts: with(execLimits("wall-time=" + limit.String()))}, "sleep", "1000")
			x := c.exec("x1", config{}, nil, "sleep", "1000")
			e.must(x.Start(e.ctx), "start an exec")
			began := time.Now() // with the clock that only goes forward
			jumpClock(t, by)
			status := <-x.exited
			if took := time.Since(began); took < limit*9/10 || took > harness.Slow(10*time.Second) {
				t.Errorf("the exec was killed after %v, its limit is %v", took, limit)
			}
			code, at, err := status.Result()
			e.must(err, "exit")
			var now unix.Timespec
			e.must(unix.ClockGettime(unix.CLOCK_REALTIME, &now), "clock")
			if age := time.Unix(now.Unix()).Sub(at); code != 137 || age < 0 || age > time.Minute {
				t.Errorf("exit with %d, %v ago, want 137 and now", code, age)
			}
			x.delete()
			c.kill()
			e.run("c2", config{}, "true").wantExit(0)
		})
	}
}

// disk is a file system on a device mapper, whose table a test changes.
type disk struct {
	t       *testing.T
	name    string
	loop    string
	sectors int
	dir     string
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t: t, name: fmt.Sprintf("shim-test-%d", os.Getpid()), sectors: 64 << 11, dir: publicDir(t)}
	image := filepath.Join(t.TempDir(), "image")
	d.do("modprobe", "-a", "loop", "dm-mod", "dm-delay", "ext4")
	d.do("truncate", "--size=64M", image)
	d.loop = strings.TrimSpace(d.do("losetup", "--find", "--show", image))
	t.Cleanup(func() { d.do("losetup", "--detach", d.loop) })
	d.do("dmsetup", "create", d.name, "--table", d.table("linear", "0"))
	t.Cleanup(func() { d.do("dmsetup", "remove", "--retry", d.name) })
	d.do("mkfs.ext4", "-q", "/dev/mapper/"+d.name)
	d.do("mount", "-o", "errors=continue", "/dev/mapper/"+d.name, d.dir)
	t.Cleanup(func() { d.do("umount", d.dir) })
	return d
}

func (d *disk) do(command ...string) string {
	d.t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1") // which would make the device node later, or never
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.t.Fatalf("%v: %v: %s", command, err, out)
	}
	return string(out)
}

func (d *disk) table(target string, more ...string) string {
	table := fmt.Sprintf("0 %d %s", d.sectors, target)
	if target == "error" {
		return table
	}
	return fmt.Sprintf("%s %s %s", table, d.loop, strings.Join(more, " "))
}

// becomes changes what the disk does, and has the kernel forget what it has read.
func (d *disk) becomes(target string, more ...string) {
	d.t.Helper()
	unix.Sync()
	d.do("dmsetup", "suspend", d.name)
	d.do("dmsetup", "load", d.name, "--table", d.table(target, more...))
	d.do("dmsetup", "resume", d.name)
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		d.t.Fatal(err)
	}
}

// rootfs is a root file system on the disk, with a program for each name.
func (d *disk) rootfs(programs ...string) string {
	d.t.Helper()
	root := filepath.Join(d.dir, "rootfs")
	for _, dir := range []string{"bin", "proc", "dev", "sys", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			d.t.Fatal(err)
		}
	}
	for _, name := range programs {
		d.do("cp", "/bin/busybox", filepath.Join(root, "bin", name))
	}
	return root
}

// Containers on a disk that fails can be killed and removed, the error of an exec says why, and others go on.
func TestNode_FailingDisk(t *testing.T) {
	needNode(t)
	e := newEnv(t)
	d := newDisk(t)
	other := e.run("other", config{}, "sleep", "1000")
	c := e.run("c1", config{rootfs: d.rootfs("sleep", "true", "echo")}, "/bin/sleep", "1000")
	d.becomes("error")
	x := c.exec("x1", config{}, nil, "/bin/echo", "hello")
	if err := x.Start(e.ctx); err == nil || !strings.Contains(strings.ToLower(err.Error()), "input/output error") {
		t.Errorf("exec = %v, want an input/output error", err)
	}
	_, err := e.tryCreate("c2", config{rootfs: filepath.Join(d.dir, "rootfs")}, "/bin/true")
	if err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("create = %v, want an input/output error", err)
	}
	y := other.exec("x1", config{}, nil, "echo", "hello")
	e.must(y.Start(e.ctx), "start an exec in another container")
	y.wantExit(0)
	c.kill()
	other.kill()
}

// A container on a slow disk takes its time, and others do not wait for it.
func TestNode_SlowDisk(t *testing.T) {
	needNode(t)
	e := newEnv(t)
	d := newDisk(t)
	other := e.run("other", config{opts: with(annotations("io.containerd.runc.v2.group", "g"))}, "sleep", "1000")
	cfg := config{
		rootfs: d.rootfs("sleep", "echo"), opts: with(annotations("io.containerd.runc.v2.group", "g")),
	}
	const delay = 500 * time.Millisecond
	d.becomes("delay", "0", fmt.Sprint(delay.Milliseconds()))
	c := e.run("c1", cfg, "/bin/sleep", "1000")
	x := c.exec("x1", config{}, nil, "/bin/echo", "hello")
	began := time.Now()
	done := make(chan time.Duration, 1)
	go func() { // joined below
		err := x.Start(e.ctx)
		if err != nil {
			e.Errorf("start an exec on a slow disk: %v", err)
		}
		done <- time.Since(began)
	}()
	y := other.exec("x1", config{}, nil, "echo", "hello")
	e.must(y.Start(e.ctx), "start an exec in another container")
	fast := time.Since(began)
	slow := <-done
	if slow < delay || fast > slow {
		t.Errorf("an exec took %v on a disk that needs %v, and another one took %v", slow, delay, fast)
	}
	y.wantExit(0)
	x.wantExit(0)
	c.kill()
	other.kill()
	d.becomes("linear", "0")
}

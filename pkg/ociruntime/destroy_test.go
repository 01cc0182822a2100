// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/system"
	"golang.org/x/sys/unix"
)

// goneManager is the manager of a cgroup that systemd removes at any moment.
type goneManager struct{ cgroups.Manager }

func (goneManager) Exists() bool { return true }

func (goneManager) Freeze(cgroups.FreezerState) error {
	return &os.PathError{Op: "write", Path: "cgroup.freeze", Err: unix.ENODEV}
}

func TestDestroy_OfACgroupThatGoesMeanwhile(t *testing.T) {
	for name, destroy := range map[string]func(*box) error{
		"Destroy": func(b *box) error { return b.Destroy() },
		"Discard": func(b *box) error { return b.Discard() },
	} {
		t.Run(name, func(t *testing.T) {
			b := create(t, newConfig(t, "true"))
			c := b.RuntimeContainer.(*container)
			must(t, b.Init().Signal(syscall.SIGKILL))
			b.wait()
			c.manager = goneManager{c.manager}
			if err := destroy(b); err != nil {
				t.Errorf("%s = %v, want success", name, err)
			}
		})
	}
}

// withoutFirstThreadEnv makes the test program one that loses its first thread.
const withoutFirstThreadEnv = "SHIM_TEST_WITHOUT_FIRST_THREAD"

// loseFirstThread ends the first thread, whose state is then that of a dead process, and goes on until stdin ends.
func loseFirstThread() int {
	go func() {
		_ = thread.Do(context.Background(), func() error { // never returns
			_, _, err := unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
			return err
		})
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0) // of all threads; main cannot return without its own
	return 0
}

func TestOpenInit_GoesByAllThreads(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), withoutFirstThreadEnv+"=1")
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer testReaper.Suspend()() // a child that only we wait for
	must(t, cmd.Start())
	pid := cmd.Process.Pid
	var stat system.Stat_t
	eventually(t, "end of the first thread", func() bool {
		stat, err = system.Stat(pid)
		return err == nil && stat.State == system.Zombie
	})
	lives := func(start uint64) (bool, error) {
		fd, err := openInit(pid, start)
		if fd >= 0 {
			must(t, unix.Close(fd))
		}
		return fd >= 0, err
	}
	if alive, err := lives(stat.StartTime); !alive || err != nil {
		t.Errorf("without its first thread: %t, %v, want that it lives", alive, err)
	}
	if alive, err := lives(stat.StartTime + 1); alive || err != nil {
		t.Errorf("of another one that had its id: %t, %v, want that it has ended", alive, err)
	}
	withoutDescriptors(t, func() { _, err = openInit(pid, stat.StartTime) })
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v, want %v", err, unix.EMFILE)
	}
	must(t, stdin.Close())
	eventually(t, "end of all threads", func() bool {
		alive, err := lives(stat.StartTime)
		return !alive && err == nil
	})
	must(t, cmd.Wait())
}

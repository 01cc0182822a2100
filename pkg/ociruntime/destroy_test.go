// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/system"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
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

// The state of a container that has ended, and whose init's number another process has, is no reason.
func TestDestroy_GoesByMoreThanANumber(t *testing.T) {
	b := create(t, newConfig(t, "true")).start()
	b.wait()
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.CgroupsPath = b.config.Spec.Linux.CgroupsPath
	c.Root = filepath.Join(filepath.Dir(b.config.Root), "another namespace")
	other := create(t, c).start()
	file := filepath.Join(stateDir(c.Root, c.ID), "state.json")
	text, err := os.ReadFile(file)
	must(t, err)
	const started = `"init_process_start":`
	must(t, os.WriteFile(file, bytes.Replace(text, []byte(started), []byte(started+"1"), 1), 0o600))
	must(t, b.Destroy())
	other.wait()
	must(t, os.WriteFile(file, text, 0o600))
	must(t, other.Destroy())
}

// Who cannot look for other containers must not take it that there are none.
func TestSubdirectories_SaysThatItCannotTell(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "namespace/container"), 0o700))
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	var err error
	withoutDescriptors(t, func() { _, err = subdirectories(root) })
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v, want %v", err, unix.EMFILE)
	}
	got, err := subdirectories(root)
	must(t, err)
	if want := []string{filepath.Join(root, "namespace/container")}; !slices.Equal(got, want) {
		t.Errorf("subdirectories = %q, want %q", got, want)
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

// `docker run --cgroup-parent` puts a container into the cgroup of another.
func TestDestroy_LeavesAnotherContainerInTheCgroup(t *testing.T) {
	private := func(*process.Config) {}
	for place, below := range map[string]string{"there": "", "below": "/below"} {
		for _, tc := range []struct {
			name    string
			change  func(*process.Config)
			destroy func(*box) error
		}{
			{"Destroy", private, func(b *box) error { return b.Destroy() }},
			{"Destroy without a PID namespace", hostPIDs, func(b *box) error { return b.Destroy() }},
			{"Remove", private, func(b *box) error { return Remove(bounded(t), b.config) }},
			{"Remove without a PID namespace", hostPIDs, func(b *box) error { return Remove(bounded(t), b.config) }},
			{"Remove by SIGKILL", hostPIDs, func(b *box) error {
				c := b.config
				c.Stop = process.Stop{Signal: syscall.SIGKILL, Grace: time.Second}
				return Remove(bounded(t), c)
			}},
			{"exit", hostPIDs, func(b *box) error {
				if err := b.KillRemaining(bounded(t)); err != nil {
					return err
				}
				return b.Destroy()
			}},
		} {
			t.Run(tc.name+", "+place, func(t *testing.T) {
				config := newConfig(t, "true")
				tc.change(&config)
				b := create(t, config).start()
				b.wait()
				c := newConfig(t, "sleep", "1000")
				c.Root = filepath.Join(filepath.Dir(b.config.Root), "another namespace")
				c.Spec.Linux.CgroupsPath = b.config.Spec.Linux.CgroupsPath + below
				other := create(t, c).start()
				err := tc.destroy(b)
				if !errdefs.IsFailedPrecondition(err) {
					t.Errorf("with another container: %v, want %v", err, errdefs.ErrFailedPrecondition)
				}
				wantText(t, err, other.config.ID, "delete that container first")
				must(t, other.Init().Signal(syscall.SIGKILL)) // which fails if it is dead
				other.wait()
				must(t, other.Destroy())
				must(t, tc.destroy(b))
			})
		}
	}
}

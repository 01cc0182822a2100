// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// nobody is a user without any right on this machine.
const nobody = 65534

// inUserNamespace runs a command as nobody on this machine, which is root in a user namespace of its own. As rootless
// containerd has it, /run is the command's own (rootlesskit --copy-up=/run).
const inUserNamespace = `exec setpriv --reuid=%[1]d --regid=%[1]d --clear-groups \
	unshare --user --map-root-user --mount sh -c 'mount -t tmpfs run /run && exec "$@"' sh %[2]s "$@"`

// rootless prepares a fake containerd whose shims are root in a user namespace only.
func rootless(t *testing.T) *fakecontainerd.Fake {
	t.Helper()
	if out, err := exec.Command("sh", "-c", fmt.Sprintf(inUserNamespace, nobody, "true")).CombinedOutput(); err != nil {
		harness.Lacking(t, "userns", fmt.Sprintf("user namespaces for a user without rights: %v: %s", err, out))
	}
	dir, rootfs := publicDir(t), publicDir(t)
	programs := shared.Env
	binary := filepath.Join(dir, "shim")
	programs.Shim = filepath.Join(dir, filepath.Base(programs.Shim))
	script := "#!/bin/sh\n" + fmt.Sprintf(inUserNamespace, nobody, binary) + "\n"
	program, err := os.ReadFile(shared.Env.Shim)
	if err := errors.Join(err, os.WriteFile(binary, program, 0o755), os.WriteFile(programs.Shim, []byte(script), 0o755),
		harness.WriteRootfs(programs, rootfs)); err != nil {
		t.Fatal(err)
	}
	f := fakecontainerd.New(t, programs, rootfs)
	f.Must(os.Chown(f.Dir, nobody, nobody), "directory of containerd")
	return f
}

// rootlessBundle is a bundle as nerdctl and buildkit make it without cgroups: no path, and nothing that needs another
// user or group than the one there is.
func rootlessBundle(f *fakecontainerd.Fake, id string, args ...string) *fakecontainerd.Bundle {
	f.Helper()
	b := f.Bundle(id, func(s *specs.Spec) {
		s.Linux.CgroupsPath = ""
		s.Linux.Resources = nil
		for i, m := range s.Mounts {
			s.Mounts[i].Options = slices.DeleteFunc(m.Options,
				func(o string) bool { return strings.HasPrefix(o, "gid=") })
		}
	}, args...)
	f.Must(filepath.WalkDir(f.Dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, nobody, nobody)
	}), "directory of containerd")
	return b
}

// rootlessShim starts the shim of a bundle and connects to it as nobody, since a shim talks to nobody but its own user.
func rootlessShim(f *fakecontainerd.Fake, b *fakecontainerd.Bundle) *fakecontainerd.Shim {
	f.Helper()
	a, err := f.Start(b, fakecontainerd.Params, nil)
	f.Must(err, "start shim")
	// The system calls as such change one thread, not all. The kernel tells the shim who this thread was when it
	// connected.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const unchanged = ^uintptr(0)
	become := func(id uintptr) {
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, unchanged, id, unchanged); errno != 0 {
				panic(errno) // a thread between two users must not go on
			}
		}
	}
	become(nobody)
	defer func() {
		// The user first: only root may become root's group again.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, unchanged, 0, unchanged); errno != 0 {
			panic(errno)
		}
		become(0)
	}()
	return f.Connect(b, a)
}

// A container without a cgroup has no statistics, and its list of processes has only the first of each exec.
func TestRootless_ShimRunsContainers(t *testing.T) {
	f := rootless(t)
	b := rootlessBundle(f, "c1", "sh", "-c", "(setsid sleep 1000 &); (sleep 1000; true) & sleep 1000")
	s := rootlessShim(f, b)
	s.Run(b)
	s.RunExec("c1", "e1", "sleep", "1000")
	r, err := s.Pids(f.Ctx, &task3.PidsRequest{ID: "c1"})
	if n := len(r.GetProcesses()); err != nil || n != 2 {
		t.Errorf("it has %d processes, %v, want init and the exec", n, err)
	}
	_, err = s.Stats(f.Ctx, &task3.StatsRequest{ID: "c1"})
	f.WantError(err, errdefs.ErrNotImplemented, "no cgroup")
	s.KillAndDelete(b)
	f.WantEvents("c1", "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 137 | exit c1 137 | delete c1")
	_, _ = s.Shutdown(f.Ctx, &task3.ShutdownRequest{ID: "c1"}) // one that the test kills leaves its socket
	harness.Eventually(f, "the shim ends", func() error {
		if harness.Alive(s.Pid) {
			return fmt.Errorf("process %d lives", s.Pid)
		}
		return nil
	})
}

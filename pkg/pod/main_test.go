// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/reaper"
)

// The test binary is a shim: its tests run beside its main thread, which becomes one pod after the other.
var (
	thread     *osthread.Thread
	testReaper = reaper.New()
)

// asShimEnv makes the test binary a shim that starts a holder, tells its pid, and waits to be killed.
const asShimEnv = "TEST_AS_SHIM"

func playShim() int {
	h, err := startHolder(context.Background(), full(), thread, testReaper)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, h.Pid())
	_ = os.Stdout.Close() // all was told
	select {}
}

func TestMain(m *testing.M) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "become subreaper:", err)
		os.Exit(1)
	}
	os.Exit(osthread.Main(func(t *osthread.Thread) int {
		thread = t
		if os.Getenv(asShimEnv) != "" {
			return playShim()
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { testReaper.Run(ctx); close(done) }()
		defer func() { cancel(); <-done }()
		return m.Run()
	}))
}

// request is one for a pod as Kubernetes has most of them, with a network namespace of the test's own.
func request(t *testing.T, change ...func(*Request)) Request {
	t.Helper()
	r := Request{
		ID: "p1", Bundle: t.TempDir(), Reaper: testReaper,
		Config: Config{Hostname: "web-0", PID: ModeContainer},
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

// create makes a pod that the test closes, and looks for what is left.
func create(t *testing.T, r Request) *Pod {
	t.Helper()
	p, err := Create(t.Context(), r, thread)
	testx.Must(t, err)
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		}
		nothingLeft(t, r.Bundle)
	})
	return p
}

func start(t *testing.T, r Request) *Pod {
	t.Helper()
	p := create(t, r)
	testx.Must(t, p.Start(t.Context()))
	return p
}

// nothingLeft fails the test if a file, a mount, a child or a namespace of a pod is left.
func nothingLeft(t *testing.T, bundle string) {
	t.Helper()
	if entries, err := os.ReadDir(bundle); err == nil && len(entries) > 0 {
		t.Errorf("left in the bundle: %v", entries)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), bundle) {
		t.Errorf("a mount below %s is left (%v)", bundle, err)
	}
	for _, name := range []string{"net", "ipc", "uts", "pid_for_children", "mnt", "user"} {
		if got, want := namespace(t, "self", name), namespace(t, "thread-self", name); got != want {
			t.Errorf("%s namespace of the main thread = %s, want the host's, %s", name, got, want)
		}
	}
	if pids := children(t); len(pids) > 0 {
		t.Errorf("children %v are left", pids)
	}
}

// namespace is that of a thread or process, as /proc shows it.
func namespace(t *testing.T, task, name string) string {
	t.Helper()
	link, err := os.Readlink("/proc/" + task + "/ns/" + name)
	testx.Must(t, err)
	return link
}

// children are those of this process, dead or alive.
func children(t *testing.T) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	testx.Must(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		pids = append(pids, strings.Fields(string(data))...)
	}
	return pids
}

// descriptors counts those of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	testx.Must(t, err)
	return len(files)
}

// pinned makes a network namespace at a path, as CRI does, in the user namespace of process pid, or the host's for 0.
func pinned(t *testing.T, pid int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	testx.Must(t, os.WriteFile(path, nil, 0o600))
	source := fmt.Sprintf("/proc/%d/ns/net", pid)
	f := func() error { return unix.Mount(source, path, "", unix.MS_BIND, "") }
	if pid == 0 {
		source = "/proc/thread-self/ns/net"
		inner := f
		f = func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return inner()
		}
	}
	testx.Must(t, osthread.Run(f))
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

// inode is that of the namespace at path, as namespace has it.
func inode(t *testing.T, path, name string) string {
	t.Helper()
	var st unix.Stat_t
	testx.Must(t, unix.Stat(path, &st))
	return fmt.Sprintf("%s:[%d]", name, st.Ino)
}

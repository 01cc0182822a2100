// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/reaper"
)

// The test binary is a shim: its tests run beside its main thread, and its reaper would steal what it may.
var (
	thread     *osthread.Thread
	testReaper = reaper.New()
)

// asShimEnv makes the test binary a shim that starts a holder, tells its pid, and waits to be killed.
const asShimEnv = "TEST_AS_SHIM"

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

func playShim() int {
	h, err := Start(context.Background(), full(), thread, testReaper)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, h.Pid())
	_ = os.Stdout.Close() // all was told
	select {}
}

// full is a holder with all that needs no other.
func full() Config {
	return Config{
		Make: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, PID: true, Hostname: "pod", UID: 65535, GID: 65535,
	}
}

// start starts a holder that the test ends, and looks for what is left.
func start(t *testing.T, c Config) *Holder {
	t.Helper()
	h, err := Start(t.Context(), c, thread, testReaper)
	testx.Must(t, err)
	t.Cleanup(func() {
		if err := h.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if slices.Contains(children(t), strconv.Itoa(h.Pid())) {
			t.Errorf("process %d is left", h.Pid())
		}
	})
	return h
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

// namespace is that of a thread or process, as /proc shows it.
func namespace(t *testing.T, task, name string) string {
	t.Helper()
	link, err := os.Readlink("/proc/" + task + "/ns/" + name)
	testx.Must(t, err)
	return link
}

// in runs a command in namespaces of the process.
func in(t *testing.T, pid int, flags []string, args ...string) string {
	t.Helper()
	out, err := tryIn(t, pid, flags, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

func tryIn(t *testing.T, pid int, flags []string, args ...string) (string, error) {
	t.Helper()
	defer testReaper.Suspend()()
	cmd := exec.CommandContext(t.Context(), "nsenter", slices.Concat([]string{"-t", strconv.Itoa(pid)}, flags, args)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

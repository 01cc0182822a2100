// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// startOverhead is how much longer a created container may take to run its program than a process that waits to become
// it: for the request, for the message to init, and for what init closes before.
const startOverhead = time.Millisecond

// pairs are measured in turns, so that whatever else the machine does meets both.
const pairs = 25

// The program writes to a fifo, which tells that it runs. Of several times the shortest counts: what is longer is the
// machine's other work.
func TestStart_IsAboutAsFastAsTheKernelCanExec(t *testing.T) {
	harness.OursOnly(t, "a fast start of what was created before")
	f := newFake(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "runs")
	f.Must(unix.Mkfifo(path, 0o600), "fifo")
	fifo, err := os.OpenFile(path, os.O_RDWR, 0)
	f.Must(err, "open fifo")
	defer func() { _ = fifo.Close() }() // nothing is written through it
	pod := f.Bundle("pod", annotate(groupKey, "pod"), "sleep", "1000")
	s := f.Shim(pod)
	s.Run(pod)
	var plain, created []time.Duration
	for i := range pairs {
		plain = append(plain, timePlain(t, fifo))

		b := f.Bundle(fmt.Sprintf("c%d", i), func(spec *specs.Spec) {
			annotate(groupKey, "pod")(spec)
			spec.Mounts = append(spec.Mounts,
				specs.Mount{Destination: "/mnt", Type: "bind", Source: dir, Options: []string{"rbind"}})
		}, "/bin/busybox", "sh", "-c", "echo >/mnt/runs")
		_, err := s.Create(f.Ctx, b.CreateRequest())
		f.Must(err, "create")
		took := until(t, fifo, func() error {
			_, err := s.Start(f.Ctx, &task.StartRequest{ID: b.ID})
			return err
		})
		created = append(created, took)
		_, err = s.Wait(f.Ctx, &task.WaitRequest{ID: b.ID})
		f.Must(err, "wait")
		_, err = s.Delete(f.Ctx, &task.DeleteRequest{ID: b.ID})
		f.Must(err, "delete")
		f.Remove(b)
	}
	slices.Sort(plain)
	slices.Sort(created)
	t.Logf("until the program ran, the shortest and the median of %d: by exec %v and %v, by Start %v and %v",
		pairs, plain[0], plain[pairs/2], created[0], created[pairs/2])
	// On a machine where an exec takes longer than that, as in the test guest, as much again is allowed.
	if over, most := created[0]-plain[0], max(startOverhead, plain[0]); over > most {
		t.Errorf("a created container needs %v more than an exec, want %v at most", over, most)
	}
	s.KillAndDelete(pod)
	s.End()
}

// execEnv makes this program wait for a byte and then become the program of execArgs.
const execEnv = "SHIM_TEST_EXEC_INTO"

// becomeOther does so, and returns if it is not asked to. Like init of a container it is a Go program on one processor:
// the kernel has its threads to end as well.
func becomeOther() {
	path := os.Getenv(execEnv)
	if path == "" {
		return
	}
	runtime.GOMAXPROCS(1)
	runtime.LockOSThread()
	if _, err := os.Stdout.WriteString("waits"); err != nil {
		panic(err)
	}
	_, err := os.Stdin.Read(make([]byte, 1))
	if err == nil {
		err = unix.Exec(path, []string{path, "sh", "-c", "echo"}, nil)
	}
	panic(err)
}

// timePlain is the time from what a waiting process reads to the first word of the program that it becomes.
func timePlain(t *testing.T, fifo *os.File) time.Duration {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{execEnv + "=" + env.Busybox}
	cmd.Stdout = fifo
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	until(t, fifo, cmd.Start)
	took := until(t, fifo, func() error {
		_, err := io.WriteString(stdin, "!")
		return err
	})
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return took
}

// until is how long it takes from what begins something to a byte in the fifo.
func until(t *testing.T, fifo *os.File, begin func() error) time.Duration {
	t.Helper()
	came := make(chan time.Time, 1)
	go func() {
		_, err := fifo.Read(make([]byte, 16))
		if err != nil {
			t.Error(err)
		}
		came <- time.Now()
	}()
	began := time.Now()
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-came:
		return at.Sub(began)
	case <-time.After(harness.Slow(10 * time.Second)):
		t.Fatal("the program does not run")
		return 0
	}
}

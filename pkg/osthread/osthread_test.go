// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package osthread

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

var thread *Thread

// playEnv makes the test binary a program that ends in the way it names.
const playEnv = "TEST_PLAY"

func TestMain(m *testing.M) {
	os.Exit(Main(func(t *Thread) int {
		thread = t
		if how := os.Getenv(playEnv); how != "" {
			return play(how)
		}
		return m.Run()
	}))
}

func play(how string) int {
	switch how {
	case "return":
		return 3
	case "exit":
		os.Exit(4)
	case "exit on the main thread":
		_ = thread.Do(func() error { os.Exit(5); return nil }) // it does not return
	case "panic":
		go func() { panic("in a goroutine") }()
		select {}
	case "end of the goroutine":
		runtime.Goexit()
	case "killed while the main thread is busy":
		go func() { _ = thread.Do(func() error { select {} }) }() // ends with the process
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)                  // cannot fail
		select {}
	}
	return 1
}

// Whether the runtime would choose the first thread is chance, so it is asked often.
func TestRun_UsesAThreadThatEnds(t *testing.T) {
	want := errors.New("of the function")
	for range 100 {
		var tid int
		err := Run(func() error {
			if tid = unix.Gettid(); tid == os.Getpid() {
				t.Error("Run ran on the first thread")
			}
			return errors.Join(unix.Unshare(unix.CLONE_NEWUTS), want)
		})
		if !errors.Is(err, want) {
			t.Fatalf("Run = %v, want %v", err, want)
		}
		for unix.Tgkill(os.Getpid(), tid, 0) == nil { // until it has ended
			runtime.Gosched()
		}
	}
}

func TestDo_RunsOnTheFirstThread(t *testing.T) {
	if unix.Gettid() == os.Getpid() {
		t.Error("Main's function is on the main thread")
	}
	var tids []int
	for range 3 {
		if err := thread.Do(func() error { tids = append(tids, unix.Gettid()); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{os.Getpid(), os.Getpid(), os.Getpid()}; !slices.Equal(tids, want) {
		t.Errorf("Do ran on %v, want %v", tids, want)
	}
}

func TestDo_ReturnsTheError(t *testing.T) {
	want := errors.New("no namespace today")
	if err := thread.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do = %v, want %v", err, want)
	}
}

// Whatever ends the program ends it, although its main goroutine waits.
func TestMain_ProgramEnds(t *testing.T) {
	for how, want := range map[string]string{
		"return": "exit status 3", "exit": "exit status 4", "exit on the main thread": "exit status 5",
		"panic": "exit status 2", "end of the goroutine": "<nil>", "killed while the main thread is busy": "signal: killed",
	} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			cmd.Env = append(os.Environ(), playEnv+"="+how, "GORACE=atexit_sleep_ms=0")
			out, err := cmd.CombinedOutput()
			if got := fmt.Sprint(err); got != want {
				t.Errorf("the program ended with %s, want %s\n%s", got, want, out)
			}
		})
	}
}

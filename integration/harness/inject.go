// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Fault makes a system call fail, as strace(1) does with -e inject.
type Fault struct {
	Call string // its name: accept4
	Err  string // of the error: ENOMEM; or Killed
	When string // which calls of each thread: "1..3", "2+" for all from the second; "" means all
}

// Killed is the Err of a Fault that kills the process at the call.
const Killed = "SIGKILL"

// String is the fault in the form of strace's option.
func (f Fault) String() string {
	text := f.Call + ":error=" + f.Err
	if f.Err == Killed {
		text = f.Call + ":signal=" + Killed
	}
	if f.When != "" {
		text += ":when=" + f.When
	}
	return text
}

// Injection is what strace did to one program.
type Injection struct {
	tb   testing.TB
	path string   // of the list of calls
	argv []string // that has a program run with the faults
}

// Inject prepares faults. strace is needed, and its absence fails the test: what it proves can be proved in no other
// way.
func Inject(tb testing.TB, faults ...Fault) *Injection {
	tb.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		tb.Fatalf("needs strace, to make system calls fail: hack/deps.sh installs it: %v", err)
	}
	i := &Injection{tb: tb, path: filepath.Join(tb.TempDir(), "strace")}
	i.argv = []string{strace, "-f", "-y", "-o", i.path}
	var calls []string
	for _, f := range faults {
		i.argv = append(i.argv, "-e", "inject="+f.String())
		calls = append(calls, f.Call)
	}
	i.argv = append(i.argv, "-e", "trace="+strings.Join(calls, ","), "-e", "signal=none")
	return i
}

// Command runs argv with the faults, from its first system call. Its output stays as it is.
func (i *Injection) Command(argv ...string) []string {
	return slices.Concat(i.argv, []string{"--"}, argv)
}

// detachLimit is how long strace may take to let go of a process.
const detachLimit = 10 * time.Second

// Into begins to make system calls of a process and its threads fail. detach ends that, as the end of the test does.
func (i *Injection) Into(pid int) (detach func()) {
	i.tb.Helper()
	argv := slices.Concat(i.argv, []string{"-p", strconv.Itoa(pid)})
	cmd := exec.Command(argv[0], argv[1:]...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		i.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		i.tb.Fatal(err)
	}
	said, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(said, "attached") {
		rest, _ := io.ReadAll(stderr) // for the message
		_ = cmd.Wait()                // it has said why
		i.tb.Fatalf("strace of process %d: %v: %s%s", pid, err, said, rest)
	}
	ended := make(chan struct{})
	go func() { // ends with strace
		defer close(ended)
		_, _ = io.Copy(io.Discard, stderr) // so that it never waits for a reader
		_ = cmd.Wait()                     // by a signal, as told to
	}()
	detached := false
	detach = func() {
		if detached {
			return
		}
		detached = true
		if Alive(pid) {
			_ = cmd.Process.Signal(unix.SIGINT)
		} else {
			_ = cmd.Process.Kill() // it may follow children
		}
		select {
		case <-ended:
		case <-time.After(Slow(detachLimit)): // it waits for ever for a process that is ending just then
			_ = cmd.Process.Kill() // which lets go of all
			<-ended
		}
	}
	i.tb.Cleanup(detach)
	return detach
}

// Hits counts the calls that failed by injection so far. A test whose faults never hit proves nothing.
func (i *Injection) Hits() int {
	i.tb.Helper()
	return len(i.Injected())
}

// Injected lists them, as strace prints them.
func (i *Injection) Injected() (lines []string) {
	i.tb.Helper()
	text, err := os.ReadFile(i.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		i.tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "(INJECTED)") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// WaitHits waits until n calls were made to fail.
func (i *Injection) WaitHits(n int) {
	i.tb.Helper()
	Eventually(i.tb, "injected faults", func() error {
		if hits := i.Hits(); hits < n {
			return fmt.Errorf("%d calls failed, want %d", hits, n)
		}
		return nil
	})
}

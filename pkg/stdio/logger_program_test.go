// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// loggerArg is what makes this binary a logging binary. Its further arguments are a mode, "to", and the file that it
// writes.
const loggerArg = "run-as-logger"

// loggerURI names this binary as a logging binary.
func loggerURI(t *testing.T, scheme, mode, to string) string {
	t.Helper()
	exe, err := os.Executable()
	testx.Must(t, err)
	return fmt.Sprintf("%s://%s?%s=%s&to=%s", scheme, exe, loggerArg, mode, url.QueryEscape(to))
}

// runAsLogger is the logging binary.
func runAsLogger(args []string) {
	mode, to := args[0], args[2]
	if mode == "traces" {
		runAsTracer(to)
	}
	stdout, stderr, ready := os.NewFile(3, "stdout"), os.NewFile(4, "stderr"), os.NewFile(5, "ready")
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	switch mode {
	case "crash":
		os.Exit(3)
	case "never-ready":
		<-term
		os.Exit(0)
	case "closes-only": // as binary:// allows
	default:
		_, _ = ready.Write([]byte{0})
	}
	_ = ready.Close()
	switch mode {
	case "die":
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		store(to, "out", line)
		os.Exit(4)
	case "half-deaf":
		_ = stderr.Close()
		copyTo(to, "out", stdout)
	case "waits-for-sigterm":
		copyTo(to, "out", stdout)
		<-term
		store(to, "term", "seen")
	case "slow":
		signal.Reset(unix.SIGTERM) // which then ends it
		copyTo(to, "out", slowly{stdout})
	case "stubborn":
		store(to, "pid", fmt.Sprint(os.Getpid()))
		for {
			<-term
			store(to, "term", "seen")
		}
	case "tells":
		entries, _ := os.ReadDir("/proc/self/fd")
		var fds []string
		for _, e := range entries {
			if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil &&
				!strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/") { // Go's runtime opens these
				fds = append(fds, e.Name())
			}
		}
		slices.SortFunc(fds, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
		store(to, "seen", fmt.Sprintf("env %q\nargs %q\nfds %q\n", os.Environ(), os.Args[1:], fds))
	default:
		var both sync.WaitGroup
		both.Go(func() { copyTo(to, "out", stdout) })
		both.Go(func() { copyTo(to, "err", stderr) })
		both.Wait()
	}
	store(to, "done", "")
}

// slowly reads less than 100 kB/s.
type slowly struct{ io.Reader }

func (s slowly) Read(b []byte) (int, error) {
	<-time.After(50 * time.Millisecond)
	return s.Reader.Read(b[:min(len(b), 4096)])
}

// runAsTracer attaches to a process until its own stdin ends. A process that is traced by one that is not its parent
// cannot be waited for by its parent, even after SIGKILL, before the tracer lets go (ptrace(2)).
func runAsTracer(pid string) {
	runtime.LockOSThread() // a thread is the tracer
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = unix.PtraceSeize(n)
	}
	fmt.Fprintln(os.Stdout, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func copyTo(to, suffix string, r io.Reader) {
	f, err := os.OpenFile(to+"."+suffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = io.Copy(f, r)
	}
	if err != nil {
		os.Exit(9)
	}
	_ = f.Close()
}

func store(to, suffix, text string) {
	if err := os.WriteFile(to+"."+suffix, []byte(text), 0o600); err != nil {
		os.Exit(9)
	}
}

// fakeChildren checks that every child is registered until it was waited for, and that forks happen while the reaper is
// suspended.
type fakeChildren struct {
	t *testing.T

	mu         sync.Mutex
	suspended  int
	registered map[int]bool
}

func newFakeChildren(t *testing.T) *fakeChildren {
	t.Helper()
	c := &fakeChildren{t: t, registered: map[int]bool{}}
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.suspended != 0 || len(c.registered) != 0 {
			t.Errorf("%d suspended and children %v are left", c.suspended, c.registered)
		}
	})
	return c
}

func (c *fakeChildren) Suspend() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.suspended--
	}
}

func (c *fakeChildren) Register(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.suspended == 0 {
		c.t.Errorf("child %d is registered without Suspend", pid)
	}
	c.registered[pid] = true
	return true
}

func (*fakeChildren) Reap(reap func()) { reap() }

func (c *fakeChildren) Unregister(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := unix.Kill(pid, 0); err == nil {
		c.t.Errorf("child %d is unregistered before it was waited for", pid)
	}
	delete(c.registered, pid)
}

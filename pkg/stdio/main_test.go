// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

// patience bounds every wait of the tests; a test that runs into it fails.
const patience = time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == loggerArg {
		runAsLogger(os.Args[2:])
		return
	}
	if len(os.Args) > 1 && os.Args[1] == holderArg {
		runAsHolder()
	}
	if len(os.Args) > 1 && os.Args[1] == nullArg {
		changeNull()
		return
	}
	if f, err := openNull(unix.O_RDONLY); err == nil { // makes its mount, which stays
		f.Close()
	}
	before := openFDs()
	code := m.Run()
	if code == 0 {
		if leaked := leaks(before); leaked != "" {
			fmt.Fprintln(os.Stderr, leaked)
			code = 1
		}
	}
	os.Exit(code)
}

// openFDs lists the descriptors of this process with what they are open on, but for those of the runtime's poller.
func openFDs() []string {
	r, w, err := os.Pipe() // makes the poller open what it needs
	if err != nil {
		panic(err)
	}
	defer r.Close()
	defer w.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	var fds []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:") {
			continue // the directory itself, and the poller
		}
		// A terminal whose other end is closed stays the same descriptor.
		fds = append(fds, e.Name()+" "+strings.TrimSuffix(target, " (deleted)"))
	}
	// The pipe of this call is not part of the answer.
	return slices.DeleteFunc(fds, func(fd string) bool {
		return strings.HasPrefix(fd, fmt.Sprint(r.Fd(), " ")) || strings.HasPrefix(fd, fmt.Sprint(w.Fd(), " "))
	})
}

// leaks says which descriptors and goroutines are there that were not before.
func leaks(before []string) string {
	var fds, stacks string
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); <-tick.C {
		more := slices.DeleteFunc(openFDs(), func(fd string) bool { return slices.Contains(before, fd) })
		fds, stacks = strings.Join(more, "\n"), goroutines()
		if fds == "" && stacks == "" {
			return ""
		}
	}
	return "leaked descriptors:\n" + fds + "\nleaked goroutines:\n" + stacks
}

// goroutines returns the stacks of the goroutines that run this package's code.
func goroutines() string {
	buf := make([]byte, 1<<20)
	var ours []string
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "stdio.(*") {
			ours = append(ours, stack)
		}
	}
	return strings.Join(ours, "\n\n")
}

// checkLeaks fails t if it leaves something behind. Call it before all else that cleans up.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := openFDs()
	t.Cleanup(func() {
		if leaked := leaks(before); leaked != "" {
			t.Error(leaked)
		}
	})
}

// env is a Streams with the client's side of its fifos.
type env struct {
	t *testing.T
	*Streams
	dir string
}

// fifos makes the named fifos in a new directory.
func fifos(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range names {
		testx.Must(t, unix.Mkfifo(filepath.Join(dir, n), 0o600))
	}
	return dir
}

// newEnv opens Streams over the fifos of the names, which are stdin, stdout and stderr.
func newEnv(t *testing.T, terminal bool, names ...string) *env {
	t.Helper()
	checkLeaks(t)
	dir := fifos(t, names...)
	c := Config{Terminal: terminal}
	for _, n := range names {
		p := filepath.Join(dir, n)
		switch n {
		case "stdin":
			c.Stdin = p
		case "stdout":
			c.Stdout = p
		case "stderr":
			c.Stderr = p
		}
	}
	return &env{t, mustOpen(t, c), dir}
}

func mustOpen(t *testing.T, c Config) *Streams {
	t.Helper()
	c.readersLater = true
	s, err := Open(t.Context(), c, idmap.Owner{})
	testx.Must(t, err)
	t.Cleanup(func() { within(t, "Close", func() { _ = s.Close() }) })
	return s
}

func (r *env) started() {
	r.t.Helper()
	testx.Must(r.t, r.Started())
	testx.Must(r.t, r.OpenStdin())
}

// run starts a process with the streams, and has them copied.
func (r *env) run(args ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	stdin, stdout, stderr := r.Child()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	testx.Must(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill() // most are gone by now
		_ = cmd.Wait()
	})
	r.started()
	return cmd
}

// process returns the writing end that a process would have as its stdout.
func (r *env) process() *os.File {
	r.t.Helper()
	_, stdout, _ := r.Child()
	return r.duplicate(stdout)
}

// processStdin returns the reading end that a process would have as its stdin.
func (r *env) processStdin() *os.File {
	r.t.Helper()
	stdin, _, _ := r.Child()
	return r.duplicate(stdin)
}

func (r *env) duplicate(f *os.File) *os.File {
	r.t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	testx.Must(r.t, err)
	own := os.NewFile(uintptr(fd), "the process's end")
	r.t.Cleanup(func() { own.Close() })
	return own
}

// client opens a fifo as containerd's client would. Before OpenStdin, stdin lets no client in.
func (r *env) client(name string) *os.File {
	r.t.Helper()
	flags := os.O_RDONLY
	if name == "stdin" {
		flags = os.O_WRONLY
	}
	f, err := os.OpenFile(filepath.Join(r.dir, name), flags|unix.O_NONBLOCK, 0)
	testx.Must(r.t, err)
	testx.Must(r.t, f.SetDeadline(time.Now().Add(patience)))
	r.t.Cleanup(func() { f.Close() })
	return f
}

func write(t *testing.T, w io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
}

// wantRead reads exactly the bytes of want.
func wantRead(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got[:n], err, want)
	}
}

// wantRest reads to the end.
func wantRest(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want {
		t.Fatalf("read to the end: %q, %v, want %q", abbreviate(got), err, abbreviate([]byte(want)))
	}
}

func abbreviate(b []byte) string {
	if len(b) > 200 {
		return fmt.Sprintf("%s... (%d bytes)", b[:200], len(b))
	}
	return string(b)
}

// within fails the test, with all stacks, if f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not return:\n%s", what, goroutines())
	}
}

// pattern is n bytes of which no two parts look alike.
func pattern(n int) string {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()[:n]
}

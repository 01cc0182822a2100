// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/fifo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// typed is a keyboard: what a test writes to the first is what the container reads. It ends with the test.
func typed(e *env) (*io.PipeWriter, io.Reader) {
	r, w := io.Pipe()
	e.Cleanup(func() { _ = w.Close() })
	return w, r
}

func (e *env) typeLine(w io.Writer, line string) {
	e.Helper()
	_, err := io.WriteString(w, line+"\n")
	e.must(err, "type "+line)
}

func TestTerminal_HasItsSizeAndEachChange(t *testing.T) {
	e := newEnv(t)
	keyboard, stdin := typed(e)
	c := e.create("c1", config{stdin: stdin, terminal: true}, "sh")
	e.must(c.Resize(e.ctx, 132, 43), "resize before start")
	e.must(c.process.Start(e.ctx), "start")
	e.typeLine(keyboard, "tty; stty size")
	c.out.WaitFor(t, "/dev/pts/0")
	c.out.WaitFor(t, "43 132")
	e.must(c.Resize(e.ctx, 100, 50), "resize")
	e.typeLine(keyboard, "stty size")
	c.out.WaitFor(t, "50 100")
	e.typeLine(keyboard, "exit 4")
	c.wantExit(4)
	e.wantEvents("c1", "create c1 | start c1 | exit c1 4 | delete c1")
}

func TestTerminal_ExecHasItsOwn(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	keyboard, stdin := typed(e)
	x := c.exec("e1", config{stdin: stdin, terminal: true}, nil, "sh")
	e.must(x.Start(e.ctx), "start e1")
	e.must(x.Resize(e.ctx, 90, 31), "resize e1")
	e.typeLine(keyboard, "stty size; read -r line; echo \"read: $line.\"; exit 5")
	x.out.WaitFor(t, "31 90")
	e.typeLine(keyboard, "hello")
	x.out.WaitFor(t, "read: hello.")
	x.wantExit(5)
	c.kill()
}

func TestTerminal_LargeOutputArrivesWhole(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{terminal: true}, nil, "sh", "-c",
		"stty -opost; head -c 1000000 /dev/zero | tr '\\0' x; echo END")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	if got, want := len(x.out.String()), 1000000+len("END\n"); got != want {
		t.Errorf("stdout has %d bytes, want %d", got, want)
	}
	c.kill()
}

// split is a terminal's streams with a stderr beside it, for which containerd's client has no words of its own.
type split struct {
	cio.IO
	stderr string
}

func (s split) Config() cio.Config {
	c := s.IO.Config()
	c.Stderr = s.stderr
	return c
}

// execSplit runs an exec that has a terminal, and whose stderr is a fifo at path.
func (e *env) execSplit(
	c *task, id, path string, stdin io.Reader, script string, change func(*specs.Process),
) (*process, error) {
	e.Helper()
	spec, err := c.container.Spec(e.ctx)
	e.must(err, "spec")
	spec.Process.Args, spec.Process.Terminal = []string{"sh", "-c", script}, true
	if change != nil {
		change(spec.Process)
	}
	p := &process{e: e, out: &harness.Buffer{}, err: &harness.Buffer{}}
	p.Process, err = c.Task.Exec(e.ctx, id, spec.Process,
		e.streams(config{terminal: true, stdin: stdin, stderr: path}, p.out, nil))
	e.must(err, "exec "+id)
	p.exited, err = p.Wait(e.ctx)
	e.must(err, "wait for "+id)
	return p, p.Process.Start(e.ctx)
}

// stderrFifo makes a fifo and reads it to its end, in a goroutine that ends with the test. It sends what it has read.
func (e *env) stderrFifo() (path string, text <-chan string) {
	e.Helper()
	path = filepath.Join(e.TempDir(), "stderr")
	e.must(unix.Mkfifo(path, 0o600), "make fifo")
	reader, err := fifo.OpenFifo(e.ctx, path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	e.must(err, "open fifo")
	e.Cleanup(func() { reader.Close() })
	read := make(chan string, 1)
	go func() { b, _ := io.ReadAll(reader); read <- string(b) }()
	return path, read
}

func TestTerminal_ExecHasTheStderrThatItNames(t *testing.T) {
	if os.Getenv("SHIM_TEST_RUNTIME") == "io.containerd.runc.v2" {
		t.Skip("SKIPPED: the runc shim gives stderr to the terminal")
	}
	if harness.AllExecsByLibcontainer() {
		t.Skip("SKIPPED: libcontainer gives stderr to the terminal")
	}
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	path, text := e.stderrFifo()
	const script = `tty; tty <&2 || true; echo oops >&2
		for fd in 0 1 2; do test -t $fd && echo fd $fd is a terminal; done
		stat -L -c %u:%a /proc/self/fd/2; exit 3`
	x, err := e.execSplit(c, "e1", path, nil, script,
		func(p *specs.Process) { p.User = specs.User{UID: 1000, GID: 1000} })
	e.must(err, "start e1")
	x.wantExit(3)
	want := "/dev/pts/0\r\nnot a tty\r\nfd 0 is a terminal\r\nfd 1 is a terminal\r\n1000:600\r\n"
	if got := x.out.String(); got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	e.wantText(text, "oops\n")

	// A fifo that nobody made is one that containerd's client named in vain.
	y, err := e.execSplit(c, "e2", path+"-not", nil, "echo oops >&2", nil)
	e.must(err, "start e2")
	y.wantExit(0)
	if got, want := y.out.String(), "oops\r\n"; got != want {
		t.Errorf("stdout of e2 = %q, want %q", got, want)
	}
	c.kill()
}

func TestTerminal_InitHasTheStderrThatItNames(t *testing.T) {
	harness.OursOnly(t, "a stderr beside the terminal of a container")
	if harness.AllExecsByLibcontainer() {
		t.Skip("SKIPPED: libcontainer gives stderr to the terminal")
	}
	e := newEnv(t)
	path, text := e.stderrFifo()
	keyboard, stdin := typed(e)
	user := oci.WithUserID(1000)
	c := e.create("c1", config{terminal: true, stdin: stdin, stderr: path, opts: with(user)}, "sh", "-c", `tty; echo oops >&2
		for fd in 0 1 2; do test -t $fd && echo fd $fd is a terminal; done
		stat -L -c %u:%a /proc/self/fd/2; read -r line; echo "$line" >&2; exit 3`)
	e.must(c.Resize(e.ctx, 132, 43), "resize before start")
	e.must(c.process.Start(e.ctx), "start")
	c.out.WaitFor(t, "1000:600")
	x := c.exec("e1", config{}, nil, "echo", "hello") // while init has its stderr
	e.must(x.Start(e.ctx), "start an exec")
	x.wantExit(0)
	e.typeLine(keyboard, "typed")
	c.wantExit(3)
	want := "/dev/pts/0\r\nfd 0 is a terminal\r\nfd 1 is a terminal\r\n1000:600\r\ntyped\r\n"
	if got := c.out.String(); got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	e.wantText(text, "oops\ntyped\n")
}

func TestTerminal_InitHasStderrWhereItCannotBeApart(t *testing.T) {
	harness.OursOnly(t, "a stderr beside the terminal of a container")
	e := newEnv(t)
	const script = `test -t 2 && echo a terminal; echo oops >&2; read -r line`
	want := "a terminal\r\noops\r\n"
	path, text := e.stderrFifo()
	for _, tt := range []struct {
		name, stderr string
		opts         []oci.SpecOpts
	}{
		{"libcontainer", path, with(harness.ExecByLibcontainer)},
		{"cri", path + "-cri", with(oci.WithAnnotations(map[string]string{"io.kubernetes.cri.container-type": "container"}))},
		{"absent", path + "-not", nil}, // as containerd's client names one in vain
	} {
		if tt.name == "cri" {
			e.must(unix.Mkfifo(tt.stderr, 0o600), "make a fifo that nobody reads")
		}
		keyboard, stdin := typed(e)
		c := e.run(tt.name, config{terminal: true, stdin: stdin, stderr: tt.stderr, opts: tt.opts}, "sh", "-c", script)
		c.out.WaitFor(t, "oops")
		if tt.name == "libcontainer" {
			e.wantText(text, "") // it ends while the process runs: nobody will write to it
		}
		e.typeLine(keyboard, "")
		c.wantExit(0)
		if got := c.out.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: stdout = %q, want %q", tt.name, got, want)
		}
	}
}

// wantText waits for the end of what stderrFifo reads.
func (e *env) wantText(text <-chan string, want string) {
	e.Helper()
	select {
	case got := <-text:
		if got != want {
			e.Errorf("stderr = %q, want %q", got, want)
		}
	case <-time.After(harness.Slow(20 * time.Second)):
		e.Error("stderr does not end")
	}
}

func TestTerminal_HasStderrWhereLibcontainerExecs(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: []oci.SpecOpts{harness.ExecByLibcontainer}}, "sleep", "1000")
	path, text := e.stderrFifo()
	keyboard, stdin := typed(e)
	x, err := e.execSplit(c, "e1", path, stdin,
		`test -t 2 && echo a terminal; echo oops >&2; read -r line; exit 3`, nil)
	e.must(err, "start e1")
	x.out.WaitFor(t, "oops")
	if harness.Runtime() == harness.Ours { // the runc shim does not open it
		e.wantText(text, "") // while the process runs: nobody will write to it
	}
	e.typeLine(keyboard, "")
	x.wantExit(3)
	if got, want := x.out.String(), "a terminal\r\noops\r\n"; !strings.HasPrefix(got, want) {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	c.kill()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"io"
	"testing"
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

func TestAContainerWithATerminalSeesItsSizeAndEachChange(t *testing.T) {
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

func TestAnExecHasATerminalOfItsOwn(t *testing.T) {
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

func TestALargeOutputThroughATerminalArrivesWhole(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{terminal: true}, nil, "sh", "-c", "stty -opost; head -c 1000000 /dev/zero | tr '\\0' x; echo END")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	if got, want := len(x.out.String()), 1000000+len("END\n"); got != want {
		t.Errorf("stdout has %d bytes, want %d", got, want)
	}
	c.kill()
}

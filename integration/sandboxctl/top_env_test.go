// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/charmbracelet/x/vt"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// terminal is a terminal of people, in which "sandboxctl top" runs.
type terminal struct {
	*testing.T
	cmd    *exec.Cmd
	pty    *os.File
	tty    *os.File // the program's end
	before unix.Termios
	ended  chan struct{} // closed when the program has, and all that it wrote was taken

	mu       sync.Mutex // guards what follows
	emulator *vt.Emulator
	raw      bytes.Buffer // all that the program wrote
}

// top starts "sandboxctl top" in a terminal of 80 × 24.
func (p *patient) top(args ...string) *terminal {
	p.Helper()
	const columns, lines = 80, 24
	x := &terminal{T: p.T, ended: make(chan struct{}), emulator: vt.NewEmulator(columns, lines)}
	var err error
	x.pty, x.tty, err = pty.Open()
	p.must(err)
	p.must(pty.Setsize(x.pty, &pty.Winsize{Cols: columns, Rows: lines}))
	x.before = x.modes()
	x.cmd = exec.Command(binary, append([]string{"--address", p.Address, "--state", p.State, "top"}, args...)...)
	x.cmd.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor")
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = x.tty, x.tty, x.tty
	x.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	p.must(x.cmd.Start())
	answers := x.emulator.InputPipe().(io.Closer)
	go func() { _, _ = io.Copy(x.pty, x.emulator) }() // what a terminal answers; it ends with that pipe
	taken := make(chan struct{})
	go x.take(taken)
	go func() {
		_ = x.cmd.Wait() // its status is in ProcessState
		_ = x.tty.Close()
		<-taken
		close(x.ended)
	}()
	p.Cleanup(func() {
		_ = x.cmd.Process.Kill() // it has ended if the test passed
		<-x.ended
		_ = answers.Close() // Emulator.Close would race with Read
		_ = x.pty.Close()
	})
	return x
}

// take shows what the program writes.
func (x *terminal) take(taken chan struct{}) {
	defer close(taken)
	buf := make([]byte, 4096)
	for {
		n, err := x.pty.Read(buf)
		x.mu.Lock()
		x.raw.Write(buf[:n])
		_, _ = x.emulator.Write(buf[:n]) // never fails
		x.mu.Unlock()
		if err != nil { // EIO: nobody has the other end any more
			return
		}
	}
}

func (x *terminal) modes() unix.Termios {
	x.Helper()
	t, err := unix.IoctlGetTermios(int(x.pty.Fd()), unix.TCGETS)
	if err != nil {
		x.Fatal(err)
	}
	return *t
}

// lines are what is seen.
func (x *terminal) lines() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var lines []string
	for y := range x.emulator.Height() {
		var b strings.Builder
		for at := 0; at < x.emulator.Width(); {
			c := x.emulator.CellAt(at, y)
			if c == nil || c.Content == "" {
				b.WriteByte(' ')
				at++
				continue
			}
			b.WriteString(c.Content)
			at += max(c.Width, 1)
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// names are the first columns of the table, without what differs from run to run.
func (x *terminal) names() string {
	lines := x.lines()
	var names []string
	for _, l := range lines[3 : len(lines)-2] {
		if l != "" {
			name, _, _ := strings.Cut(l[min(len(l), 4):], " ")
			names = append(names, l[:min(len(l), 4)]+name)
		}
	}
	return strings.Join(names, "\n")
}

// wait waits for a condition of the screen, and shows it if that does not come.
func (x *terminal) wait(what string, cond func(lines []string) bool) {
	x.Helper()
	harness.Eventually(x, what, func() error {
		if lines := x.lines(); !cond(lines) {
			return fmt.Errorf("on the screen is:\n%s", strings.Join(lines, "\n"))
		}
		return nil
	})
}

// waitNames waits until the rows have these names.
func (x *terminal) waitNames(what, names string) {
	x.Helper()
	x.wait(what+":\n"+names, func([]string) bool { return x.names() == names })
}

// waitText waits for a text in some line.
func (x *terminal) waitText(text string) {
	x.Helper()
	x.wait(fmt.Sprintf("%q", text), func(lines []string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, text) })
	})
}

// press types keys.
func (x *terminal) press(keys string) {
	x.Helper()
	if _, err := io.WriteString(x.pty, keys); err != nil {
		x.Fatal(err)
	}
}

// Keys as a terminal sends them.
const (
	up, down, home, end = "\x1b[A", "\x1b[B", "\x1b[H", "\x1b[F"
	enter, escape       = "\r", "\x1b"
)

// wantRestored waits for the end of the program, and looks whether the terminal is as it was.
func (x *terminal) wantRestored() {
	x.Helper()
	restored := x.awaitEnd()
	if got := x.cmd.ProcessState.ExitCode(); got != 0 {
		x.Errorf("exit status = %d, want 0", got)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if restored != x.before {
		x.Errorf("modes of the terminal = %+v, want those of before, %+v", restored, x.before)
	}
	if x.emulator.IsAltScreen() {
		x.Error("the terminal still shows the other screen")
	}
	if x.emulator.CursorHidden() {
		x.Error("the cursor is hidden")
	}
	for _, mode := range []string{"1000", "1002", "1003", "1006", "2004", "1004"} { // mouse, paste, focus
		if on, off := bytes.LastIndex(x.raw.Bytes(), []byte("\x1b[?"+mode+"h")), bytes.LastIndex(x.raw.Bytes(), []byte("\x1b[?"+mode+"l")); on > off {
			x.Errorf("mode %s was set, and not reset", mode)
		}
	}
}

// awaitEnd returns the modes of the terminal after the program's end. This end is still open: the last to close it would
// reset nothing, but there would be no modes to read.
func (x *terminal) awaitEnd() unix.Termios {
	x.Helper()
	harness.Eventually(x, "end of sandboxctl top", func() error {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, x.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		select {
		case <-x.ended:
			return nil
		default:
		}
		if err != nil || info.Signo == 0 {
			return fmt.Errorf("it runs\n%s", strings.Join(x.lines(), "\n"))
		}
		return nil
	})
	modes := x.modes()
	<-x.ended
	return modes
}

// inGroup makes a container one of a pod.
func inGroup(id string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": id})
}

// busy is a program that uses a CPU as far as its limit lets it.
func busy() oci.SpecOpts { return oci.WithProcessArgs("sh", "-c", "while :; do :; done") }

func sleeping() oci.SpecOpts { return oci.WithProcessArgs("sleep", "1000") }

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// pty makes a pseudo-terminal as a runtime does inside a container.
func pty(t *testing.T) (master *os.File, path string) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	testx.Must(t, err)
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { master.Close() })
	testx.Must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	testx.Must(t, err)
	return master, fmt.Sprintf("/dev/pts/%d", n)
}

func openSlave(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	testx.Must(t, err)
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

// send passes files over the console socket.
func (r *env) send(files ...*os.File) {
	r.t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	testx.Must(r.t, unix.Sendmsg(int(r.ConsoleSocket().Fd()), []byte("/dev/ptmx"), unix.UnixRights(fds...), nil, 0))
}

// attach hands a new terminal to the Streams, as a runtime would, and returns the path of the process's side.
func (r *env) attach() string {
	r.t.Helper()
	master, path := pty(r.t)
	r.send(master)
	master.Close()
	return path
}

// runOn starts a process on the terminal.
func (r *env) runOn(tty string, args ...string) *exec.Cmd {
	r.t.Helper()
	slave := openSlave(r.t, tty)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testx.Must(r.t, cmd.Start())
	slave.Close()
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill() // most are gone by now
		_ = cmd.Wait()
	})
	return cmd
}

func TestTerminal_CarriesInputAndOutput(t *testing.T) {
	r := newEnv(t, true, "stdin", "stdout", "stderr") // stderr is ignored
	out := r.client("stdout")
	tty := r.attach()
	cmd := r.runOn(tty, "sh", "-c", "stty -echo; echo ready; read x; echo got $x; tty; echo error >&2")
	r.started()
	wantRead(t, out, "ready\r\n")
	write(t, r.client("stdin"), "a line\n")
	testx.Must(t, cmd.Wait())
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	wantRest(t, out, "got a line\r\n"+tty+"\r\nerror\r\n")
}

func TestTerminal_CarriesTenMegabytes(t *testing.T) {
	const size = 10 << 20
	r := newEnv(t, true, "stdout")
	out := r.client("stdout")
	cmd := r.runOn(r.attach(), "sh", "-c", fmt.Sprintf("stty raw; head -c %d /dev/zero", size))
	r.started()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	drained := make(chan error, 1)
	go func() {
		err := <-exited
		drained <- errors.Join(err, r.Drain(t.Context()))
	}()
	var n int
	buf := make([]byte, 1<<16)
	for {
		m, err := out.Read(buf)
		n += m
		if err != nil {
			break
		}
	}
	if err := <-drained; err != nil || n != size {
		t.Errorf("read %d bytes, %v, want %d", n, err, size)
	}
}

func TestResize(t *testing.T) {
	r := newEnv(t, true, "stdout")
	slave := openSlave(t, r.attach())
	want := func(width, height uint16) {
		t.Helper()
		ws, err := unix.IoctlGetWinsize(int(slave.Fd()), unix.TIOCGWINSZ)
		if err != nil || ws.Col != width || ws.Row != height {
			t.Errorf("size of the terminal: %+v, %v, want %dx%d", ws, err, width, height)
		}
	}
	resize := func(width, height uint16) {
		t.Helper()
		if err := r.Resize(width, height); err != nil {
			t.Error(err)
		}
	}
	// Whoever asks before keeps the size: pkg/process, setHandle.
	if err := r.Resize(10, 20); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("Resize before Started: %v, want ErrFailedPrecondition", err)
	}
	r.started()
	resize(10, 20)
	resize(100, 50)
	want(100, 50)
	resize(120, 40)
	want(120, 40)
	testx.Must(t, r.Close())
	if err := r.Resize(1, 1); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("Resize after Close: %v, want ErrFailedPrecondition", err)
	}
}

func TestResize_WithoutTerminalIsRefused(t *testing.T) {
	r := newEnv(t, false, "stdout")
	err := r.Resize(80, 25)
	if want := "resize to 80x25: no terminal, or not started: failed precondition"; err == nil || err.Error() != want {
		t.Errorf("Resize() = %v, want %s", err, want)
	}
}

// systemd as a container's init closes its console and opens it again.
func TestTerminal_SurvivesBeingClosedAndOpenedAgain(t *testing.T) {
	r := newEnv(t, true, "stdin", "stdout")
	out := r.client("stdout")
	tty := r.attach()
	r.started()
	for i := range 20 {
		slave := openSlave(t, tty)
		line := fmt.Sprintf("line %d\n", i)
		write(t, slave, line)
		wantRead(t, out, line[:len(line)-1]+"\r\n")
		slave.Close()
		testx.Eventually(t, "the copiers sleep", asleep(2))
	}
	slave := openSlave(t, tty)
	write(t, r.client("stdin"), "answer\n")
	wantRead(t, slave, "answer\n")
}

func TestTerminal_CloseStdinTypesTheEndOfFile(t *testing.T) {
	tests := []struct{ name, input string }{
		{"after a whole line", "a line\n"},
		{"after a part of a line", "a line\npart"},
		{"without input", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newEnv(t, true, "stdin", "stdout")
			out := r.client("stdout")
			cmd := r.runOn(r.attach(), "sh", "-c", "stty -echo -onlcr; echo ready; cat; echo end")
			r.started()
			in := r.client("stdin")
			wantRead(t, out, "ready")
			wantRead(t, out, "\n")
			write(t, in, tt.input)
			in.Close()
			testx.Must(t, r.CloseStdin())
			wantRead(t, out, tt.input+"end\n")
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTerminal_WithoutStdoutIsReadAllTheSame(t *testing.T) {
	checkLeaks(t)
	r := &env{t, mustOpen(t, Config{Terminal: true}), ""}
	cmd := r.runOn(r.attach(), "head", "-c", "1000000", "/dev/zero")
	r.started()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

// As TestDrain_LosesNothing: the kernel hands what is written to a terminal through buffers that FIONREAD does not
// count.
func TestTerminal_DrainLosesNothing(t *testing.T) {
	text := pattern(4000)
	for range 50 {
		r := newEnv(t, true, "stdout")
		out := r.client("stdout")
		tty := r.attach()
		process, grandchild := openSlave(t, tty), openSlave(t, tty)
		r.started()
		write(t, process, text)
		process.Close()
		testx.Must(t, r.Drain(t.Context()))
		within(t, "Close", func() { _ = r.Close() })
		wantRest(t, out, text)
		grandchild.Close()
	}
}

func TestStarted_RefusesWhatIsNotOneMaster(t *testing.T) {
	const noMaster = "not a master of a pseudo-terminal: inappropriate ioctl for device: invalid argument"
	tests := []struct {
		name  string
		send  func(t *testing.T, r *env)
		class error
		want  string
	}{
		{"no descriptor", func(_ *testing.T, r *env) { r.send() }, errdefs.ErrFailedPrecondition, "it sent none: failed precondition"},
		{"nothing, and the runtime is gone", func(*testing.T, *env) {}, errdefs.ErrFailedPrecondition, "it sent none: failed precondition"},
		{"two files", func(_ *testing.T, r *env) { r.send(os.Stdin, os.Stdin) }, errdefs.ErrInvalidArgument, noMaster},
		{"the process's side of a terminal", func(t *testing.T, r *env) {
			t.Helper()
			_, path := pty(t)
			r.send(openSlave(t, path))
		}, errdefs.ErrInvalidArgument, noMaster},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newEnv(t, true, "stdout")
			tt.send(t, r)
			err := r.Started()
			want := "receive the terminal from the runtime: " + tt.want
			if !errors.Is(err, tt.class) || err.Error() != want {
				t.Errorf("Started()\n got %v\nwant %s of class %v", err, want, tt.class)
			}
		})
	}
}

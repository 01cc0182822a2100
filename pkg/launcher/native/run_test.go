// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/reaper"
)

// Go uses descriptors above those of the child while it puts these in place.
func TestStart_WithAnyDescriptors(t *testing.T) {
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r := held(t)
	for number := range 80 {
		fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, number)
		if err != nil {
			t.Fatal(err)
		}
		stdin := os.NewFile(uintptr(fd), "stdin")
		run, err := p.Start(r, [3]*os.File{stdin, stdin, stdin})
		if err != nil {
			t.Errorf("Start with descriptor %d: %v", fd, err)
			continue
		}
		var request Request
		request.Sleep()
		sleeping, err := run.Execute(t.Context(), &request)
		if err != nil {
			t.Errorf("Execute with descriptor %d: %v", fd, err)
			continue
		}
		_ = sleeping.Kill()        // it sleeps for ever
		_, _ = sleeping.Wait()     // it was killed
		r.Unregister(sleeping.Pid) // nobody waits for it any more
		_ = stdin.Close()          // only read
	}
}

func child(t *testing.T, args ...string) *os.Process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // dead already is as good
		_ = cmd.Wait()         // so is waited for
	})
	return cmd.Process
}

func held(t *testing.T) *reaper.Reaper {
	t.Helper()
	r := reaper.New()
	t.Cleanup(r.Suspend()) // the test waits for the children
	return r
}

func TestFollowChild(t *testing.T) {
	var request Request
	request.Call(unix.SYS_GETPID)
	forks := []*Step{request.Fork(0), request.Fork(0)}
	first, second, third := child(t, "true"), child(t, "true"), child(t, "sleep", "1000")
	r := &Run{name: "test", request: &request, children: held(t), current: first}
	refused := func(pid int, step *Step, want string) {
		t.Helper()
		before := r.current
		if err := r.followChild(t.Context(), pid, step); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("followChild of process %d at step %d = %v, want that it %s", pid, step.index, err, want)
		}
		if r.current != before {
			t.Errorf("the refused process %d is the current one", pid)
		}
	}
	refused(1, forks[0], "must be a child of ours")
	refused(os.Getpid(), forks[0], "must be a child of ours")
	refused(1<<30, forks[0], "must be a child of ours")
	r.children.Register(second.Pid)
	refused(second.Pid, forks[0], "without an owner")
	r.children.Unregister(second.Pid)
	refused(second.Pid, request.steps[0], "must be a fork")

	// What the later of two processes reports may come before.
	if err := r.followChild(t.Context(), third.Pid, forks[1]); err != nil || r.current.Pid != third.Pid {
		t.Errorf("followChild = %v and process %d is the current one, want %d", err, r.current.Pid, third.Pid)
	}
	if err := r.followChild(t.Context(), second.Pid, forks[0]); err != nil || r.current.Pid != third.Pid {
		t.Errorf("followChild = %v and process %d is the current one, want still %d", err, r.current.Pid, third.Pid)
	}
	for name, p := range map[string]*os.Process{"first": first, "second": second} {
		if err := isChild(p.Pid); err == nil {
			t.Errorf("the %s process can be waited for, want that followChild did", name)
		}
	}
	refused(first.Pid, forks[1], "not reported")
}

// The first process may be killed, as for lack of memory, or fail, before it has read the whole request.
func TestExecute_ProcessEndsAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		fails bool
		class error
		want  string
	}{
		"killed": {false, errdefs.ErrAborted, "the launcher was killed: aborted"},
		"failed": {true, unix.ENOMEM, "no room: cannot allocate memory"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := socketpair(t)
			var request Request
			step := request.Call(unix.SYS_GETPID).OnError("no room")
			if p := (&played{T: t, socket: theirs}); tc.fails {
				p.write(messageFailed, uint32(unix.ENOMEM), step)
			}
			_ = theirs.Close() // by the end of the process
			current := child(t, "true")
			r := &Run{name: "launcher", children: held(t), socket: ours, current: current}
			_, err := r.Execute(t.Context(), &request)
			if !errors.Is(err, tc.class) || err.Error() != tc.want {
				t.Errorf("Execute = %v, want %q", err, tc.want)
			}
			if err := isChild(current.Pid); err == nil {
				t.Error("the process can be waited for, want that Execute did")
			}
		})
	}
}

// The reaper may collect a child that was killed at birth before the parent's report is read.
func TestExecute_ChildWasKilledInCgroupAndCollected(t *testing.T) {
	for name, tc := range map[string]struct {
		inCgroup bool
		want     error
	}{"at birth": {false, ErrKilledInCgroup}, "later": {true, errdefs.ErrAborted}} {
		t.Run(name, func(t *testing.T) {
			p := play(t.Context(), t, "true")
			p.fork.args[0] = 1
			if tc.inCgroup {
				p.report(messageInCgroup, 0, p.fork)
			}
			p.report(messagePID, 1<<30, p.fork)
			_ = p.socket.Close() // by the end of both processes
			if err := <-p.result; !errors.Is(err, tc.want) {
				t.Errorf("Execute = %v, want %v", err, tc.want)
			}
			if err := isChild(p.run.current.Pid); err == nil {
				t.Errorf("process %d can be waited for, want that Execute did", p.run.current.Pid)
			}
		})
	}
}

func socketpair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
}

// The kinds of messages, as in program.h.
const (
	messagePID      = 1
	messageInCgroup = 2
	messageWaiting  = 3
	messageFailed   = 4
)

// played is a run of which the test plays the program: a fork, and a wait of the child.
type played struct {
	*testing.T
	request    Request
	fork, wait *Step
	run        *Run
	socket     *os.File
	next       *os.Process
	result     chan error
}

func play(ctx context.Context, t *testing.T, first ...string) *played {
	t.Helper()
	p := &played{T: t, next: child(t, "sleep", "1000"), result: make(chan error, 1)}
	p.fork = p.request.Fork(0)
	p.request.Wait(nil)
	p.wait = p.request.steps[1]
	ours, theirs := socketpair(t)
	t.Cleanup(func() { _ = theirs.Close() }) // closed already is as good
	if err := theirs.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	p.socket = theirs
	p.run = &Run{name: "test", children: held(t), socket: ours, current: child(t, first...)}
	go func() { // ends with the socket
		_, err := p.run.Execute(ctx, &p.request)
		p.result <- err
	}()
	p.read(len(p.request.Encode()))
	return p
}

func (p *played) read(size int) {
	p.Helper()
	b := make([]byte, size+1)
	if n, err := p.socket.Read(b); n != size || err != nil {
		p.Fatalf("the shim sent %d bytes, %v, want %d", n, err, size)
	}
}

func (p *played) write(kind, value uint32, step *Step) {
	p.Helper()
	var b []byte
	for _, word := range []uint32{kind, value, uint32(step.index), 0} {
		b = binary.NativeEndian.AppendUint32(b, word)
	}
	if _, err := p.socket.Write(b); err != nil {
		p.Fatal(err)
	}
}

// report writes a message and returns when the shim has read it.
func (p *played) report(kind, value uint32, step *Step) {
	p.Helper()
	p.write(kind, value, step)
	for unread := 1; unread != 0; {
		conn, err := p.socket.SyscallConn()
		if err == nil {
			err = conn.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		}
		if err != nil {
			p.Fatal(err)
		}
	}
}

// A child can report that it waits, or that it failed, before its parent reports which process it is.
func TestExecute_WithAChildThatIsFasterThanItsParent(t *testing.T) {
	t.Run("waits", func(t *testing.T) {
		p := play(t.Context(), t, "true")
		p.report(messageWaiting, 0, p.wait)
		if err := p.socket.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := p.socket.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the shim let a process go on that it does not know: %d, %v", n, err)
		}
		if err := p.socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		p.report(messagePID, uint32(p.next.Pid), p.fork)
		p.read(1)
		_ = p.socket.Close() // as execve does
		if err := <-p.result; err != nil || p.run.current.Pid != p.next.Pid {
			t.Errorf("Execute = %v with process %d, want %d", err, p.run.current.Pid, p.next.Pid)
		}
	})
	t.Run("failed", func(t *testing.T) {
		p := play(t.Context(), t, "true")
		p.report(messageFailed, uint32(unix.EINVAL), p.wait)
		p.report(messagePID, uint32(p.next.Pid), p.fork)
		if err := <-p.result; !errors.Is(err, unix.EINVAL) || p.run.current.Pid != p.next.Pid {
			t.Errorf("Execute = %v with process %d, want %v and %d", err, p.run.current.Pid, unix.EINVAL, p.next.Pid)
		}
		if err := isChild(p.next.Pid); err == nil {
			t.Error("the child that failed can be waited for, want that Execute did")
		}
	})
	t.Run("was collected, and had failed", func(t *testing.T) { // once its parent had reported it
		p := play(t.Context(), t, "true")
		p.report(messagePID, 1<<30, p.fork)
		p.report(messageFailed, uint32(unix.EINVAL), p.wait)
		if err := <-p.result; !errors.Is(err, unix.EINVAL) {
			t.Errorf("Execute = %v, want %v", err, unix.EINVAL)
		}
	})
	t.Run("failed and was collected", func(t *testing.T) {
		p := play(t.Context(), t, "true")
		p.report(messageFailed, uint32(unix.EINVAL), p.wait)
		p.report(messagePID, 1<<30, p.fork)
		if err := <-p.result; !errors.Is(err, unix.EINVAL) {
			t.Errorf("Execute = %v, want %v", err, unix.EINVAL)
		}
	})
}

// A child may be frozen, and so wait for as long as its cgroup is.
func TestExecute_KillsAChildWhoseReportWasNotRead(t *testing.T) {
	ours, theirs := socketpair(t)
	defer func() { _ = theirs.Close() }() // the process that ends has it
	current, next := child(t, "sleep", "1000"), child(t, "sleep", "1000")
	p := &played{T: t, socket: theirs}
	p.fork = p.request.Fork(0)
	p.write(messagePID, uint32(next.Pid), p.fork)
	if err := ours.SetReadDeadline(time.Unix(1, 0)); err != nil { // as a context that ends does
		t.Fatal(err)
	}
	r := &Run{name: "test", children: held(t), socket: ours, current: current}
	if _, err := r.Execute(t.Context(), &p.request); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Execute = %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if err := isChild(next.Pid); err == nil {
		t.Error("the child can be waited for, want that Execute killed it and did")
	}
}

// The process that ends may be frozen right before it does.
func TestExecute_InterruptedWhileAProcessIsToEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := play(ctx, t, "sleep", "1000")
	first := p.run.current.Pid
	p.report(messagePID, uint32(p.next.Pid), p.fork)
	cancel()
	if err := <-p.result; !errors.Is(err, context.Canceled) {
		t.Errorf("Execute = %v, want %v", err, context.Canceled)
	}
	for _, pid := range []int{first, p.next.Pid} {
		if err := isChild(pid); err == nil {
			t.Errorf("process %d can be waited for, want that Execute did", pid)
		}
	}
}

// Else the reaper would stop at it for good, and reap no orphan any more.
func TestKill_LeavesToTheReaperWhoseEndItCannotAwait(t *testing.T) {
	orphans := reaper.New()
	go orphans.Run(t.Context()) // ends with the test
	r := &Run{children: orphans, request: new(Request)}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	orphans.Register(pid)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	err := r.kill(cmd.Process)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("process %d was killed", pid); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), want) {
		t.Errorf("kill = %v, want %v and %q", err, unix.EMFILE, want)
	}
	for deadline := time.Now().Add(10 * time.Second); isChild(pid) == nil; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("nobody has reaped the process")
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Actions of the command line, which a successor has as the last argument.
const (
	ActionCheck = "check-state" // says whether a state can be restored, and exits
	ActionTake  = "take-over"   // goes on with a state
)

// Environment variables of a program that takes over.
const (
	failureVariable = "SHIM_TAKE_OVER_FAILURE" // why the successor of this program has returned to it
	formerVariable  = "SHIM_TAKE_OVER_FORMER"  // descriptor of the program to return to
)

// Failure returns why the successor of this program has returned to it, or "".
func Failure() string { return os.Getenv(failureVariable) }

// former returns the descriptor of the program to return to, or 0.
func former() FD {
	fd, _ := strconv.Atoi(os.Getenv(formerVariable)) // 0 if it is not set
	return FD(fd)
}

// clearEnv keeps the variables from children.
func clearEnv() {
	_ = os.Unsetenv(failureVariable) // fails only for a wrong name
	_ = os.Unsetenv(formerVariable)
}

// Program is a program that can succeed this one.
type Program struct {
	Path string
	args []string // without the action
	file *os.File
	info unix.Stat_t
}

// OwnPath returns the path at which the program of this process was, or is, installed.
func OwnPath() (string, error) {
	path, err := os.Readlink("/proc/self/exe")
	return strings.TrimSuffix(path, " (deleted)"), err
}

// Own opens the file of this process's program, which may be deleted.
func Own() (*os.File, error) { return os.Open("/proc/self/exe") }

// Open opens the program at path, and refuses one that others than root can change. args are its arguments without the
// action. The caller closes the Program.
func Open(path string, args []string) (*Program, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	p := &Program{Path: path, args: args, file: file}
	err = unix.Fstat(int(file.Fd()), &p.info)
	if err == nil {
		err = checkOwner(p.info)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("program %q: %w", path, err), file.Close())
	}
	return p, nil
}

func checkOwner(info unix.Stat_t) error {
	refuse := func(why string) error { return fmt.Errorf("%s: %w", why, errdefs.ErrFailedPrecondition) }
	switch {
	case info.Mode&unix.S_IFMT != unix.S_IFREG || info.Mode&0o111 == 0:
		return refuse("must be an executable file")
	case info.Uid != uint32(os.Geteuid()):
		return refuse(fmt.Sprintf("its owner is user %d: must be that of the shim, %d", info.Uid, os.Geteuid()))
	case info.Mode&0o022 != 0:
		return refuse(fmt.Sprintf("its mode is %#o: must not let others write", info.Mode&0o7777))
	}
	return nil
}

// Close closes the file.
func (p *Program) Close() error { return p.file.Close() }

// IsOwn reports whether the program is the one of this process.
func (p *Program) IsOwn() (bool, error) {
	var own unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &own); err != nil {
		return false, &os.PathError{Op: "stat", Path: "/proc/self/exe", Err: err}
	}
	return own.Dev == p.info.Dev && own.Ino == p.info.Ino, nil
}

// unchanged returns an error if another file is at the path, or the file has changed.
func (p *Program) unchanged() error {
	var now unix.Stat_t
	if err := unix.Stat(p.Path, &now); err != nil {
		return &os.PathError{Op: "stat", Path: p.Path, Err: err}
	}
	if now.Dev != p.info.Dev || now.Ino != p.info.Ino || now.Size != p.info.Size || now.Ctim != p.info.Ctim {
		return fmt.Errorf("program %q: was replaced meanwhile: %w", p.Path, errdefs.ErrUnavailable)
	}
	return nil
}

// mostAnswer bounds what a program that refuses a state says, in bytes.
const mostAnswer = 4 << 10

// Children tells the rest of this program which child processes nobody else waits for. It is a reaper.Reaper.
type Children interface {
	Suspend() (resume func())
	Register(pid int) bool
	Unregister(pid int)
}

// Start starts the program as a child that checks s, and has all descriptors of s under their numbers. wait waits for
// its answer, and kills it when ctx ends: the error says why the program refuses. The child dies with the calling
// thread, which is to be the main one.
func (p *Program) Start(s *State, children Children) (wait func(context.Context) error, err error) {
	answer, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close() //nolint:errcheck // the child has its own
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, answer.Close())
	}
	defer null.Close() //nolint:errcheck // as above
	const none = ^uintptr(0)
	files := make([]uintptr, max(slices.Max(s.fds), syscall.Stderr)+1)
	for fd := range files {
		switch {
		case slices.Contains(s.streams, fd):
			files[fd] = null.Fd()
		case slices.Contains(s.fds, fd):
			files[fd] = uintptr(fd)
		default:
			files[fd] = none
		}
	}
	files[0], files[1], files[2] = s.file.Fd(), none, theirs.Fd()
	defer children.Suspend()()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.file.Fd()) // in the child it is closed
	pid, err := syscall.ForkExec(path, p.argv(ActionCheck), &syscall.ProcAttr{
		Env: s.env(), Files: files, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("program %q: start it for a check: %w", p.Path, err), answer.Close())
	}
	children.Register(pid)
	child, err := os.FindProcess(pid) // nobody has waited for it
	return func(ctx context.Context) error {
		defer children.Unregister(pid)
		defer answer.Close() //nolint:errcheck // only read
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = child.Kill() })() // it may be dead already
		text, _ := io.ReadAll(io.LimitReader(answer, mostAnswer))   // what can be read of it
		state, err := child.Wait()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("program %q: no answer: %w", p.Path, context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("program %q: %w", p.Path, err)
		case !state.Success():
			said := strings.ToValidUTF8(strings.TrimSpace(string(text)), "?")
			return fmt.Errorf("program %q refuses: %v: %s: %w", p.Path, state, said, errdefs.ErrFailedPrecondition)
		}
		return nil
	}, nil
}

// env is the environment of a program that gets s.
func (s *State) env() []string {
	return append(os.Environ(), fmt.Sprintf("%s=%d", formerVariable, s.back.Fd()))
}

func (p *Program) argv(action string) []string {
	return slices.Concat([]string{filepath.Base(p.Path)}, p.args, []string{action})
}

// Exec replaces the program of this process by p, which goes on with s. It returns only after a failure, and nothing
// has changed then. It is called on the main thread: when another one executes a program, the kernel ends this one, and
// with it the children that are to die with their parent (prctl(2), PR_SET_PDEATHSIG).
func (p *Program) Exec(s *State) error {
	if err := p.unchanged(); err != nil {
		return err
	}
	return execute(p.Path, p.argv(ActionTake), s.env(), s.file, s.fds)
}

// Stuck returns an error if a thread sleeps uninterruptibly for a while: execve(2) would wait for it, for ever if it
// waits for a file system that does not answer. It takes a millisecond, and is called before the process is frozen:
// what is under way then has ended when it is frozen.
func Stuck() error {
	const tries, pause = 5, 2 * time.Millisecond
	for try := 1; ; try++ {
		sleeping := 0
		threads, _ := filepath.Glob("/proc/self/task/*/stat")
		for _, file := range threads {
			stat, _ := os.ReadFile(file) // of one that has ended there is none
			_, state, _ := strings.Cut(string(stat), ") ")
			if strings.HasPrefix(state, "D") {
				sleeping++
			}
		}
		switch {
		case sleeping == 0:
			return nil
		case try == tries:
			return fmt.Errorf("%d threads wait for a file system that does not answer: %w", sleeping, errdefs.ErrUnavailable)
		}
		<-time.After(pause)
	}
}

// Return goes back to the program that wrote the state of l, because of why. l is nil if the state cannot be read. It
// returns only after a failure, which is also that there is no way back twice. It is called on the main thread.
func Return(l *Loader, state *os.File, args []string, why error) error {
	fd := former()
	if fd == 0 || Failure() != "" {
		return fmt.Errorf("there is no program to return to: %w", errdefs.ErrFailedPrecondition)
	}
	var fds []int
	if l != nil {
		fds = l.all
	}
	const most = 4 << 10 // bytes; execve(2) has a limit
	env := append(os.Environ(), failureVariable+"="+fmt.Sprintf("%.*s", most, strings.ReplaceAll(why.Error(), "\x00", "")))
	argv := slices.Concat([]string{filepath.Base(os.Args[0])}, args, []string{ActionTake})
	return execute(fmt.Sprintf("/proc/self/fd/%d", fd), argv, env, state, fds)
}

// execute executes a program with state as its standard input, and with the descriptors. Nothing forks meanwhile, which
// would have these descriptors too.
//
// +checklocksignore: the lock of package syscall
func execute(path string, argv, env []string, state *os.File, fds []int) error {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	var files unix.Rlimit // which syscall.Exec sets to what it was at the start of the process
	_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &files)
	defer func() {
		_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, &files, nil)
		for _, fd := range fds {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC) // it is open, as below
		}
		if null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil { // else the state stays open
			_ = unix.Dup3(int(null.Fd()), syscall.Stdin, 0) // valid ones
			_ = null.Close()                                // nothing was written
		}
	}()
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("hand over descriptor %d: %w", fd, os.NewSyscallError("fcntl", err))
		}
	}
	if err := unix.Dup3(int(state.Fd()), syscall.Stdin, 0); err != nil && state.Fd() != uintptr(syscall.Stdin) {
		return fmt.Errorf("hand over the state: %w", os.NewSyscallError("dup3", err))
	}
	err := syscall.Exec(path, argv, env) //nolint:gosec // the program that is installed, or the former one
	return fmt.Errorf("execute %q: %w", path, err)
}

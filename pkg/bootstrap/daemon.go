// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

// #include "detach.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/containerd/v2/pkg/schedcore"
	"github.com/containerd/containerd/v2/pkg/sys"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/osthread"
)

// Daemon describes the shim's process to its services.
type Daemon struct {
	Args
	Bundle       string           // of the container or sandbox it was started for; absolute
	TTRPCAddress string           // containerd's ttrpc socket, for events; "" when started by hand
	SocketPath   string           // our own socket
	Thread       *osthread.Thread // holds the namespaces of a pod
	Options      options.Options  // those of start, for the pod: CreateSandbox has none, and containers bring their own
	Umask        int              // the one that it was started with

	// For those that ask the shim to take more (Join):
	Sent   *anypb.Any // the options as containerd sent them; nil for none
	Digest uint64     // of the request of start without the id, by join.c; 0 if it is not known
	Answer []byte     // to such a request
}

// umask is the shim's: directories that it makes for containers are for all of their users.
const umask = 0o022

// Program is the name of this program, which ps shows.
const Program = "containerd-shim-sandbox-v1"

// Args are the arguments of the command line.
type Args struct {
	Namespace string // containerd's namespace; one daemon serves one
	ID        string // of the container or sandbox
	Address   string // containerd's gRPC socket; part of the name of our own socket
	Debug     bool
	Defaults  *options.Defaults
}

// ServeFunc serves a listener, which it may close, until the shim has nothing left to do.
type ServeFunc func(context.Context, Daemon, idle.Listener) error

// dropSignals drops SIGPIPE of a peer that hung up, and the SIGHUP that the kernel sends to a stopped shim when start
// ends (setpgid(2)). Programs that the shim executes would inherit ignored signals.
func dropSignals() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGHUP) }

// runServe runs serve on a goroutine that is not on the main thread, which is for pods. It owns l. Errors go to the
// log: containerd already has its answer (docs/decisions/0009).
func runServe(d Daemon, l *listener, serve ServeFunc) (err error) {
	defer logToFifo(d.Bundle, d.Args)()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s: %w", p, debug.Stack(), errdefs.ErrInternal)
		}
		if err != nil {
			log.L.WithError(err).Error("shim ended")
		}
	}()
	defer l.Close() //nolint:errcheck // serve may have closed it
	ctx, stop := watchSignals()
	defer stop()
	err = serve(ctx, d, l)
	if ctx.Err() != nil { // what a signal cut short is no failure of the shim
		return nil
	}
	return err
}

// initial is serve in a process that has not served yet. What it sets stays for a successor (execve(2)).
func initial(serve ServeFunc) ServeFunc {
	return func(ctx context.Context, d Daemon, l idle.Listener) error {
		// Orphans of a container without a PID namespace become children of the shim, where Delete finds them.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become subreaper: %w", err)
		}
		// The bundle may be removed before the group's other containers.
		if err := os.Chdir("/"); err != nil {
			return err
		}
		return serve(ctx, d, l)
	}
}

// watchSignals returns a context that ends at SIGTERM or SIGINT. SIGUSR1 logs the stacks of all goroutines. stop ends
// and joins the goroutine.
func watchSignals() (ctx context.Context, stop func()) {
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	asked, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(asked, unix.SIGUSR1)
	go func() {
		defer close(done)
		for range asked {
			buf := make([]byte, 16<<20) // uses memory only as far as it is written to
			stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
			for _, stack := range stacks {
				log.L.Info("goroutine dump: " + stack)
			}
			log.L.Infof("goroutine dump: %d in all", len(stacks))
		}
	}()
	return ctx, func() {
		signal.Stop(asked)
		close(asked)
		<-done
		cancel()
	}
}

// initDaemon sets the daemon's process group, cgroup, OOM score, core scheduling domain, environment and arguments.
func initDaemon(d Daemon) error {
	// A process group of its own keeps a terminal's signals away. The leader of a session would get a controlling
	// terminal.
	if err := unix.Setpgid(0, 0); err != nil {
		return fmt.Errorf("start daemon: make process group: %w", err)
	}
	if cgroup := d.Options.ShimCgroup; cgroup != "" {
		if err := joinCgroup(cgroup); err != nil {
			return fmt.Errorf("%s: ShimCgroup %q: %w", d.Options.Origin(), cgroup, err)
		}
	}
	// The kernel is to kill the shim before containerd.
	score, err := sys.GetOOMScoreAdj(caller())
	if err == nil {
		err = sys.AdjustOOMScore(os.Getpid(), score+1)
	}
	if err != nil {
		log.L.WithError(err).Warn("the shim keeps the OOM score of its parent")
	}
	if os.Getenv("SCHED_CORE") != "" {
		if err := schedcore.Create(schedcore.ProcessGroup); err != nil {
			return fmt.Errorf("SCHED_CORE: make core scheduling domain: %w", err)
		}
	}
	// Loggers find these where containerd's own shims have them (pkg/shim/util.go).
	for name, value := range map[string]string{
		"TTRPC_ADDRESS": d.TTRPCAddress, "GRPC_ADDRESS": d.Address, "NAMESPACE": d.Namespace,
		"OTEL_SERVICE_NAME": "containerd-shim-" + d.ID,
	} {
		_ = os.Setenv(name, value) // fails only for a NUL, which no argument has
	}
	showArgs(append([]string{Program}, daemonArgs(d.Args)...))
	return nil
}

// daemonArgs are the arguments of the daemon, which ps shows.
func daemonArgs(a Args) []string {
	args := []string{"-namespace", a.Namespace, "-id", a.ID, "-address", a.Address}
	if a.Debug {
		args = append(args, "-debug")
	}
	return args
}

// checkDetached returns why detach.c has not split this process off.
func checkDetached() error {
	if C.detached.error != 0 {
		return fmt.Errorf("fork the daemon: %w", syscall.Errno(C.detached.error))
	}
	if C.detached.original < 0 {
		return errors.New("fork the daemon: start has to be the last argument of the process")
	}
	return nil
}

// caller returns the pid of containerd, which ran start.
func caller() int { return int(C.detached.caller) }

// detach makes this process the daemon and answers containerd. After an error the answer does not count, since the
// original process fails too. It is called on the main thread.
func detach(d Daemon, answer []byte) error {
	if err := initDaemon(d); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	defer func() { _ = null.Close() }() // nothing is written to it
	if err := reply(answer); err != nil {
		return err
	}
	// containerd waits until nobody holds its end of our stdout.
	for fd := range syscall.Stderr + 1 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("start daemon: let go of descriptor %d: %w", fd, err)
		}
	}
	// It is the main thread that the kernel is to kill with the original process.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("start daemon: outlive start: %w", err)
	}
	original := os.NewFile(uintptr(C.detached.original), "start")
	defer func() { _ = original.Close() }() // all is written
	if _, err := original.Write([]byte{0}); err != nil {
		return fmt.Errorf("start daemon: start was killed: %w", err)
	}
	dropSignals() // not sooner: it starts a thread, for which containerd would wait
	return nil
}

// showArgs makes ps show args, cut off at the length of start's arguments.
func showArgs(args []string) {
	shown := unsafe.Slice((*byte)(unsafe.Pointer(C.detached.args)), int(C.detached.size))
	clear(shown[copy(shown[:len(shown)-1], strings.Join(args, "\x00")):])
}

// joinCgroup moves this process into the existing cgroup group, on v1 in each hierarchy that has it.
func joinCgroup(group string) error {
	group = path.Clean("/" + group) // no ".." leads out of the hierarchy
	pid := uint64(os.Getpid())
	if cgroups.Mode() == cgroups.Unified {
		m, err := cgroup2.Load(group)
		if err != nil {
			return err
		}
		return m.AddProc(pid)
	}
	c, err := cgroup1.Load(cgroup1.StaticPath(group))
	if err != nil {
		return err
	}
	return c.AddProc(pid)
}

// logFifo is the bundle's fifo `log`, which containerd copies to its own log. write(2) drops lines that do not fit; an
// os.File, and so containerd/fifo, would wait in the poller.
type logFifo int

// Write never fails: the logger would write to stderr, which `start` must keep silent.
func (fd logFifo) Write(p []byte) (int, error) {
	_, _ = unix.Write(int(fd), p)
	return len(p), nil
}

// openFifo opens a fifo for reading and writing: the open needs no reader, and writes after containerd's exit get no
// EPIPE. It returns -1 without a fifo, as for a sandbox.
func openFifo(path string) int {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		_ = unix.Close(fd) // nothing was written
		return -1
	}
	return fd
}

// logToFifo sends this process's log and the report of a crash to bundle's fifo, until restore is called.
func logToFifo(bundle string, a Args) (restore func()) {
	logger := log.L.Logger
	logger.SetOutput(io.Discard)      // not stderr: at start it is part of the answer
	_ = log.SetFormat(log.TextFormat) // cannot fail for a constant of the package's own
	log.L = logger.WithFields(log.Fields{"id": a.ID, "namespace": a.Namespace})
	if a.Debug {
		logger.SetLevel(log.DebugLevel)
	}
	logMu.Lock()
	defer logMu.Unlock()
	if !openLogLocked(bundle) {
		return func() {} // a shim without a log is better than none
	}
	return func() {
		logMu.Lock()
		defer logMu.Unlock()
		logger.SetOutput(io.Discard)
		closeLog()
	}
}

var (
	logMu    sync.Mutex  // guards closeLog
	closeLog = func() {} // +checklocksignore: closes the fifo of the log
)

// openLogLocked has the log go to bundle's fifo, if there is one.
func openLogLocked(bundle string) bool {
	path := filepath.Join(bundle, "log")
	fd := openFifo(path)
	if fd < 0 {
		return false
	}
	f := os.NewFile(uintptr(fd), path)
	_ = debug.SetCrashOutput(f, debug.CrashOptions{}) // without it a crash goes unseen
	_ = unix.SetNonblock(fd, true)                    // SetCrashOutput makes it blocking: a full log would hang a crash
	log.L.Logger.SetOutput(logFifo(fd))
	closeLog = func() { _ = f.Close() } // nothing is buffered, and nobody writes: the logger has another output
	return true
}

// MoveLog has the log go to the fifo of another bundle, since that of the former one is gone. It returns false, and
// changes nothing, if there is no fifo.
func MoveLog(bundle string) bool {
	logMu.Lock()
	defer logMu.Unlock()
	former := closeLog
	if !openLogLocked(bundle) {
		return false
	}
	former()
	return true
}

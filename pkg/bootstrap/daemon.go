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
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
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

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/osthread"
)

// Daemon says what the shim's services need to know about the process they run in.
type Daemon struct {
	Args
	Bundle       string           // of the container or sandbox it was started for; absolute
	TTRPCAddress string           // containerd's ttrpc socket, for events; "" when started by hand
	SocketPath   string           // our own socket
	Thread       *osthread.Thread // holds the namespaces of a pod
	Options      options.Options  // those of start, for the pod: CreateSandbox has none, and containers bring their own
	Umask        int              // the one that it was started with
}

// umask is that of the shim, since directories that it makes for containers are for all of their users.
const umask = 0o022

// Program is the name of this program, which ps shows.
const Program = "containerd-shim-sandbox-v1"

// Args is what the command line says about the shim.
type Args struct {
	Namespace string // containerd's namespace; one daemon serves one
	ID        string // of the container or sandbox
	Address   string // containerd's gRPC socket; part of the name of our own socket
	Debug     bool
	Defaults  *options.Defaults
}

// ServeFunc answers on a listener until there is nothing left to do. It may close the listener before that.
type ServeFunc func(context.Context, Daemon, net.Listener) error

// runDaemon sets this process up as the shim and runs serve until there is nothing left to do, on another goroutine,
// since this one keeps the main thread for it. It owns l. Its error goes to the log: containerd already has its answer
// (docs/decisions/0009).
func runDaemon(d Daemon, l *listener, serve ServeFunc) error {
	return osthread.Main(func(t *osthread.Thread) error {
		d.Thread, d.Umask = t, unix.Umask(umask)
		return runServe(d, l, serve)
	})
}

// dropSignals drops what would end the shim: SIGPIPE if a peer hangs up, even containerd, and the SIGHUP that the kernel
// sends to a stopped shim when start ends (setpgid(2)); before this, detach.c ignores it. Signals that are set to
// ignored would be so in every program that the shim executes.
func dropSignals() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGHUP) }

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
	// Orphans of a container without a pid namespace come to us, where Delete finds them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	// The bundle is removed with its container, but the daemon may serve others of the group after that.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	ctx, stop := watchSignals()
	defer stop()
	err = serve(ctx, d, l)
	if ctx.Err() != nil { // what a signal cut short is no failure of the shim
		return nil
	}
	return err
}

// watchSignals returns a context that ends at SIGTERM or SIGINT. At SIGUSR1 a goroutine logs the stack of each goroutine
// as an entry of its own, and how many there are. stop ends and joins it.
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

// initDaemon sets up what the daemon has of its own. It joins the existing cgroup ShimCgroup, if the options name one.
func initDaemon(d Daemon) error {
	// A process group of its own keeps a terminal's signals and kills of containerd's group away. The leader of a session
	// would take the first terminal that it opens as its controlling one.
	if err := unix.Setpgid(0, 0); err != nil {
		return fmt.Errorf("start daemon: make process group: %w", err)
	}
	if cgroup := d.Options.ShimCgroup; cgroup != "" {
		if err := joinCgroup(cgroup); err != nil {
			return fmt.Errorf("%s: ShimCgroup %q: %w", d.Options.Origin(), cgroup, err)
		}
	}
	// It is one point more likely to be killed for memory than containerd, whose loss would cost every container.
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
	// Programs that it executes, such as loggers, find these where containerd's own shims have them (pkg/shim/util.go).
	for name, value := range map[string]string{
		"TTRPC_ADDRESS": d.TTRPCAddress, "GRPC_ADDRESS": d.Address, "NAMESPACE": d.Namespace,
		"OTEL_SERVICE_NAME": "containerd-shim-" + d.ID,
	} {
		_ = os.Setenv(name, value) // fails only for a NUL, which no argument has
	}
	args := []string{Program, "-namespace", d.Namespace, "-id", d.ID, "-address", d.Address}
	if d.Debug {
		args = append(args, "-debug")
	}
	showArgs(args)
	return nil
}

// checkDetached returns why detach.c has not split this process off the one that containerd waits for.
func checkDetached() error {
	if C.detached.error != 0 {
		return fmt.Errorf("fork the daemon: %w", syscall.Errno(C.detached.error))
	}
	if C.detached.original < 0 {
		return errors.New("fork the daemon: start has to be the last argument of the process")
	}
	return nil
}

// caller returns the pid of the process that ran start: containerd's.
func caller() int { return int(C.detached.caller) }

// detach makes this process the daemon that d describes and answers containerd. If it fails, it has not answered, or
// the answer does not count, since the original process fails too. It is called on the main thread.
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

// showArgs makes ps show args instead of the arguments of start, cut off if there is no more room. Those of the daemon
// fit, unless containerd sends another address on stdin.
func showArgs(args []string) {
	shown := unsafe.Slice((*byte)(unsafe.Pointer(C.detached.args)), int(C.detached.size))
	clear(shown[copy(shown[:len(shown)-1], strings.Join(args, "\x00")):])
}

// joinCgroup moves this process into the cgroup group: on v1 in each hierarchy that has it. start calls it before it
// answers, so that containerd learns of a failure.
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

// logFifo writes log lines to the bundle's fifo `log`, which containerd copies to its own log. It never blocks: what does
// not fit while containerd is down is dropped. It writes with write(2) itself: an os.File, and so containerd/fifo, would
// hand a full fifo to the poller and wait.
type logFifo int

// Write always reports success: an error would make the logger write to stderr, which `start` must keep silent.
func (fd logFifo) Write(p []byte) (int, error) {
	_, _ = unix.Write(int(fd), p)
	return len(p), nil
}

// openFifo opens a fifo for reading and writing, so that the open needs no reader, and a write after containerd has
// exited does not fail with EPIPE. It returns -1 if there is no fifo: a sandbox may have no log.
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
	path := filepath.Join(bundle, "log")
	fd := openFifo(path)
	if fd < 0 {
		return func() {} // a shim without a log is better than none
	}
	logger.SetOutput(logFifo(fd))
	crashTo(path)
	return func() {
		logger.SetOutput(io.Discard)
		_ = unix.Close(fd) // nothing is buffered, and nobody writes: the logger has another output
	}
}

// crashTo lets the runtime report a crash of any goroutine to the fifo at path. SetCrashOutput switches the description
// to blocking; that is undone here, or a crash with a full log would hang for ever.
func crashTo(path string) {
	fd := openFifo(path)
	if fd < 0 {
		return // without it a crash goes unseen
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // the runtime keeps a duplicate
	if debug.SetCrashOutput(f, debug.CrashOptions{}) == nil && unix.SetNonblock(fd, true) != nil {
		_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // better no report than a hang
	}
}

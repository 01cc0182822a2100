// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

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
	"time"

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

// umask is that of the shim, and of what it starts: directories that it makes for containers are for all of their
// users. What is not for everybody has a mode that says so.
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

// ServeFunc answers on a listener until there is nothing left to do. It may close the listener, which removes the
// socket, before it has answered all calls.
type ServeFunc func(context.Context, Daemon, net.Listener) error

// ServeOn makes this process the shim on socket, without containerd.
func ServeOn(a Args, socket string, serve ServeFunc) error {
	bundle, err := os.Getwd()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if socket, err = filepath.Abs(socket); err != nil {
		return err
	}
	l, err := listen(ctx, socket)
	if err != nil {
		return err
	}
	dropSignals()
	return runDaemon(Daemon{
		Args: a, Bundle: bundle, TTRPCAddress: os.Getenv("TTRPC_ADDRESS"), SocketPath: socket,
	}, l, serve)
}

// runDaemon sets this process up as the shim and runs serve until there is nothing left to do, on another goroutine,
// since this one keeps the main thread for it. It owns l. Its error goes to the log: containerd already has its answer
// (docs/decisions/0009).
func runDaemon(d Daemon, l *listener, serve ServeFunc) error {
	return osthread.Main(func(t *osthread.Thread) error {
		d.Thread, d.Umask = t, unix.Umask(umask)
		return runServe(d, l, serve)
	})
}

// dropSignals catches and drops signals that would end the shim. A peer that hangs up, even containerd, then only makes
// the call that writes to it fail (SIGPIPE). The kernel sends SIGHUP to a stopped shim when start ends (setpgid(2));
// before this, detach.c ignores it. The signals are not set to ignored: every program that the shim executes would
// inherit that.
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
	defer func() { err = errors.Join(err, l.Close()) }()
	// Orphans of a container without a pid namespace come to us, where Delete finds them. This is not inherited by
	// children.
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
	if err != nil && ctx.Err() != nil {
		// A signal asked for the end, so what was cut short is no failure of the shim.
		log.L.WithError(err).Info("shim ended on request")
		err = nil
	}
	return err
}

// watchSignals returns a context that ends at SIGTERM or SIGINT. SIGUSR1 dumps all goroutines to the log. stop ends
// and joins the goroutine that does both.
func watchSignals() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range signals {
			if s == unix.SIGUSR1 {
				dumpGoroutines()
				continue
			}
			log.L.WithField("signal", s).Info("asked to end")
			cancel()
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel()
	}
}

// dumpGoroutines logs the stack of each goroutine as an entry of its own, so that a full log loses only single ones,
// and then how many there are.
func dumpGoroutines() {
	buf := make([]byte, 16<<20) // uses memory only as far as it is written to
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	for _, stack := range stacks {
		log.L.Info("goroutine dump: " + stack)
	}
	log.L.Infof("goroutine dump: %d in all", len(stacks))
}

// initDaemon sets up what the daemon has of its own. It joins the existing cgroup ShimCgroup, if the options name one.
func initDaemon(d Daemon) error {
	// A process group of its own keeps a terminal's signals and kills of containerd's group away. It gets no session of
	// its own: the leader of a session takes the first terminal it opens as its controlling one, and shims open
	// terminals.
	if err := unix.Setpgid(0, 0); err != nil {
		return fmt.Errorf("start daemon: make process group: %w", err)
	}
	if cgroup := d.Options.ShimCgroup; cgroup != "" {
		if err := joinCgroup(cgroup); err != nil {
			return fmt.Errorf("%s: ShimCgroup %q: %w", d.Options.Origin(), cgroup, err)
		}
	}
	if err := raiseOOMScore(caller()); err != nil {
		log.L.WithError(err).Warn("the shim keeps the OOM score of its parent")
	}
	if os.Getenv("SCHED_CORE") != "" {
		// This is requested to keep workloads off each other's cores, so failing is right if the kernel cannot do it.
		if err := schedcore.Create(schedcore.ProcessGroup); err != nil {
			return fmt.Errorf("SCHED_CORE: make core scheduling domain: %w", err)
		}
	}
	// Programs that it executes, such as loggers, find these where containerd's own shims have them (pkg/shim/util.go).
	for name, value := range map[string]string{
		"TTRPC_ADDRESS": d.TTRPCAddress, "GRPC_ADDRESS": d.Address, "NAMESPACE": d.Namespace,
		"OTEL_SERVICE_NAME": "containerd-shim-" + d.ID,
	} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("start daemon: set %s: %w", name, err)
		}
	}
	args := []string{Program, "-namespace", d.Namespace, "-id", d.ID, "-address", d.Address}
	if d.Debug {
		args = append(args, "-debug")
	}
	showArgs(args)
	return nil
}

// joinCgroup moves this process into the cgroup group: on v1 in each hierarchy that has it. start calls it before it
// answers, so that containerd learns of a failure.
func joinCgroup(group string) (err error) {
	group = path.Clean("/" + group) // no ".." leads out of the hierarchy
	pid := uint64(os.Getpid())
	if cgroups.Mode() == cgroups.Unified {
		var m *cgroup2.Manager
		if m, err = cgroup2.Load(group); err == nil {
			err = m.AddProc(pid)
		}
	} else {
		var c cgroup1.Cgroup
		if c, err = cgroup1.Load(cgroup1.StaticPath(group)); err == nil {
			err = c.AddProc(pid)
		}
	}
	switch {
	case errors.Is(err, cgroup1.ErrCgroupDeleted), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("it does not exist: %w", errdefs.ErrNotFound)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (cpuset.cpus or cpuset.mems is empty)", err)
	}
	return err
}

// raiseOOMScore makes this process one point more likely to be killed for memory than parent: losing containerd would
// cost every container, losing a shim one pod. Where the parent's score is below ours, that needs CAP_SYS_RESOURCE
// (proc_pid_oom_score_adj(5)).
func raiseOOMScore(parent int) error {
	score, err := sys.GetOOMScoreAdj(parent)
	if err != nil {
		return err
	}
	return sys.AdjustOOMScore(os.Getpid(), score+1)
}

// logFifo writes log lines to the bundle's fifo `log`, which containerd copies to its own log. It never blocks: while
// containerd is down nobody reads, and what does not fit is dropped and counted.
//
// It writes with write(2) itself: an os.File, and so containerd/fifo, would hand a full fifo to the poller and wait.
// The logger's lock guards it.
type logFifo struct {
	fd      int
	dropped int
	torn    bool // the last line was written in part
}

// openLogFifo opens the fifo for reading and writing, so that the open needs no reader, and a write after containerd
// has exited does not fail with EPIPE. It returns nil if there is no fifo: a sandbox may have no log.
func openLogFifo(path string) *logFifo {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		_ = unix.Close(fd) // nothing was written
		return nil
	}
	return &logFifo{fd: fd}
}

// Write writes p or drops it. It always reports success: an error would make the logger write to stderr, which `start`
// must keep silent.
func (l *logFifo) Write(p []byte) (int, error) {
	if l.dropped > 0 || l.torn {
		note := fmt.Appendf(nil, "log was full, %d lines dropped\n", l.dropped)
		if l.torn {
			note = append([]byte("\n"), note...)
		}
		// It is shorter than PIPE_BUF, so it is written whole or not at all (pipe(7)).
		if l.write(note) != len(note) {
			l.dropped++
			return len(p), nil
		}
		l.dropped, l.torn = 0, false
	}
	if n := l.write(p); n < len(p) {
		l.dropped++
		l.torn = n > 0
	}
	return len(p), nil
}

// write returns how many bytes the fifo took.
func (l *logFifo) write(p []byte) (done int) {
	for done < len(p) {
		n, err := unix.Write(l.fd, p[done:])
		if err != nil { // no signal interrupts what does not block
			break
		}
		done += n
	}
	return done
}

// logToFifo sends this process's log to bundle's fifo in containerd's text format, and the report of a crash as well.
// The function it returns ends that.
func logToFifo(bundle string, a Args) (restore func()) {
	logger := log.L.Logger
	logger.SetOutput(io.Discard)      // not stderr: at start it is part of the answer
	_ = log.SetFormat(log.TextFormat) // cannot fail for a constant of the package's own
	// containerd copies the lines of all shims into its own log.
	log.L = logger.WithFields(log.Fields{"id": a.ID, "namespace": a.Namespace})
	if a.Debug {
		logger.SetLevel(log.DebugLevel)
	}
	path := filepath.Join(bundle, "log")
	l := openLogFifo(path)
	if l == nil {
		return func() {} // a shim without a log is better than none
	}
	logger.SetOutput(l)
	crashTo(path)
	return func() {
		logger.SetOutput(io.Discard)
		_ = unix.Close(l.fd) // nothing is buffered, and nobody writes: the logger has another output
	}
}

// crashTo lets the runtime report a crash of any goroutine to the fifo at path. It gets a description of its own,
// since SetCrashOutput switches it to blocking; that is undone here, or a crash with a full log would hang for ever.
func crashTo(path string) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return // the log has just been opened; without it a crash goes unseen, as it would anyway
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // the runtime keeps a duplicate
	if debug.SetCrashOutput(f, debug.CrashOptions{}) != nil {
		return
	}
	if unix.SetNonblock(fd, true) != nil {
		_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // better no report than a hang
	}
}

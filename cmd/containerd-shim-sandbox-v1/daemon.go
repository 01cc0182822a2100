// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/mainthread"
)

// daemon says what the shim's services need to know about the process they run in.
type daemon struct {
	Namespace    string // containerd's namespace; one daemon serves one
	ID           string // the container or sandbox it was started for
	Bundle       string // that one's bundle; absolute
	Address      string // containerd's gRPC socket
	TTRPCAddress string // containerd's ttrpc socket, for events; "" when started by hand
	SocketPath   string // our own socket
	Debug        bool
	Thread       *mainthread.Thread // holds the namespaces of a pod

	// Ready is called once, when requests are answered from now on. It is never nil. unanswered is called, once at most,
	// when start died before it gave containerd our address.
	Ready func(unanswered func())
}

// exit is how a container's init ended, as `delete` reports it.
type exit struct {
	Pid    int
	Status int // exit code, or 128 and the signal
	At     time.Time
}

// runDaemon sets this process up as the shim and lets serve run until there is nothing left to do. Its error reaches the
// log: start does not wait for it (docs/decisions/0007).
func runDaemon(f flags, thread *mainthread.Thread, serve func(context.Context, daemon, *net.UnixListener) error) (err error) {
	answered, err := openAnswered()
	if err != nil {
		return err
	}
	// Before anything is opened: started by hand there is no descriptor 3 yet, and the next open would become it.
	l, listenErr := inheritedListener(f.socket)
	bundle, err := os.Getwd()
	if err != nil {
		return errors.Join(err, listenErr)
	}
	defer logToFifo(bundle, f.debug)()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s: %w", p, debug.Stack(), errdefs.ErrInternal)
		}
		if err != nil {
			log.L.WithError(err).Error("shim ended")
		}
	}()
	if listenErr != nil {
		return listenErr
	}
	path := l.Addr().String()
	id, err := identify(path)
	if err != nil {
		return errors.Join(fmt.Errorf("find own socket: %w", err), l.Close())
	}
	defer func() { err = errors.Join(err, retire(l, path, id)) }()
	if err := tuneProcess(); err != nil {
		return err
	}
	// The bundle goes with its container, but the daemon may serve others of the group after that.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	ctx, stop := watchSignals(context.Background())
	defer stop()
	err = serve(ctx, daemon{
		Namespace:    f.namespace,
		ID:           f.id,
		Bundle:       bundle,
		Address:      f.address,
		TTRPCAddress: os.Getenv("TTRPC_ADDRESS"),
		SocketPath:   path,
		Debug:        f.debug,
		Thread:       thread,
		Ready: func(unanswered func()) {
			go awaitAnswer(answered, unanswered) // ends with start, which the daemon outlives
		},
	}, l)
	if err != nil && ctx.Err() != nil {
		// A signal asked for the end, so what was cut short is no failure of the shim.
		log.L.WithError(err).Info("shim ended on request")
		err = nil
	}
	return err
}

// retire closes the listener and removes its socket.
func retire(l *net.UnixListener, path string, id fileID) error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // serve's server has usually closed it
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(err, removeSocket(ctx, path, id))
}

// tuneProcess sets what holds for the daemon's whole life. Nothing here is periodic: an idle shim is not woken.
func tuneProcess() error {
	// Orphans of a container without a pid namespace come to us, where Delete finds them. Not inherited by children.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return restoreGodebug()
}

// restoreGodebug takes our own setting out of the environment again: loggers and hooks inherit it.
func restoreGodebug() error {
	v := os.Getenv("GODEBUG")
	if v == noHugePages {
		return os.Unsetenv("GODEBUG")
	}
	if rest, ok := strings.CutSuffix(v, ","+noHugePages); ok {
		return os.Setenv("GODEBUG", rest)
	}
	return nil
}

// inheritedListener returns the socket that start bound, or binds path when one is given.
func inheritedListener(path string) (*net.UnixListener, error) {
	if path != "" {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		bound, err := listen(ctx, path)
		if err != nil {
			return nil, err
		}
		return unixListener(bound.file)
	}
	// Asked before it is touched: a descriptor 3 that is not ours may be the runtime's.
	if on, err := unix.GetsockoptInt(listenFD, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
		return nil, fmt.Errorf("no action given, and descriptor %d is no listening socket: %w: %w", listenFD, errUsage, errdefs.ErrInvalidArgument)
	}
	return unixListener(os.NewFile(listenFD, "socket"))
}

// unixListener makes a listener of file and closes file.
func unixListener(file *os.File) (*net.UnixListener, error) {
	l, err := net.FileListener(file) // a duplicate, close-on-exec
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("serve on %s: %w", file.Name(), err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("serve on %s: it is of network %q: %w", file.Name(), l.Addr().Network(), errdefs.ErrInvalidArgument), l.Close())
	}
	return u, nil
}

// watchSignals returns a context that ends at SIGTERM or SIGINT. SIGUSR1 dumps all goroutines to the log. stop ends
// and joins the goroutine that does both.
func watchSignals(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	// Caught and dropped, not ignored: an ignored signal stays ignored in every program we execute.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-signals:
				if s == unix.SIGUSR1 {
					dumpGoroutines()
					continue
				}
				log.L.WithField("signal", s).Info("asked to end")
				cancel()
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel()
	}
}

// dumpGoroutines logs the stack of each goroutine as an entry of its own, so that a full log loses single ones.
func dumpGoroutines() {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for n == len(buf) && len(buf) < 16<<20 {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	for stack := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		log.L.Info("goroutine dump: " + stack)
	}
}

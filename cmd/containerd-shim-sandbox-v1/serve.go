// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	goruntime "runtime"
	"sync"
	"time"

	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/ociruntime"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/service"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// Bounds on the end of the shim.
const (
	// flushTimeout bounds the sending of the last events. It is longer than one attempt takes.
	flushTimeout = 10 * time.Second
	// answerTimeout is for the answer to Shutdown itself (io.containerd.timeout.shim.shutdown).
	answerTimeout = 3 * time.Second
)

// shim is the parts of a daemon.
type shim struct {
	d         bootstrap.Daemon
	listener  idle.Listener
	reaper    *reaper.Reaper
	publisher *service.Publisher
	events    *event.Queue
	group     *group.Group
	memory    *idle.Memory
	clients   *idle.Tracker
	started   time.Time
	upgrading sync.Mutex
	ending    context.Context //nolint:containedctx // that of run: it ends with a signal to the shim
}

// serve answers on l until the shim has nothing left to do, or ctx ends.
func serve(ctx context.Context, d bootstrap.Daemon, l idle.Listener) error {
	return newShim(d, l, false).run(ctx)
}

// newShim makes the parts, with the unit for which the shim was started, unless a former program has all of them.
func newShim(d bootstrap.Daemon, l idle.Listener, restored bool) *shim {
	s := &shim{d: d, listener: l, reaper: reaper.New(), started: time.Now()}
	s.publisher = service.NewPublisher(d.Namespace, d.TTRPCAddress)
	s.events = event.NewQueue(s.publisher.Publish)
	host := stdio.NewHost(d.Namespace, s.reaper)
	host.Umask = d.Umask
	runtime := ociruntime.New(s.reaper)
	most, _ := limit.ParseSize(d.Options.MaxShmSize) // 0 if it is not set; pkg/options has checked it
	all := extensions()
	table := all.Settings()
	c := group.Config{Most: 1, Make: func(id, bundle string) *group.Unit {
		u := &group.Unit{Tasks: task.New(runtime, s.events, host, all, table)}
		u.Tasks.KeepIndex(id, bundle, d.SocketPath, deleteAnswer)
		u.Tasks.ShareShim(func() bool { return s.group.Others() })
		u.Pods = sandbox.New(u.Tasks, func(ctx context.Context, r pod.Request) (sandbox.Pod, error) {
			r.MaxShmSize, r.Reaper, r.Shared = most, s.reaper, d.Options.SharesShims()
			return pod.Create(ctx, r, d.Thread)
		})
		u.Pods.Act = func(f func()) { s.clients.Act(func() { f(); s.group.Reap() }) }
		return u
	}}
	if d.Options.SharesShims() {
		if goruntime.GOMAXPROCS(0) == 1 {
			goruntime.GOMAXPROCS(2) // one pod's output does not hold up the calls for others
		}
		c.Most, c.Accepts, c.Open, c.Close = d.Options.PodsPerShim, d.Accepts, d.MakeLink, d.RemoveLink
		c.MoveLog = func(bundle string) bool {
			moved := bootstrap.MoveLog(bundle)
			if moved {
				s.d.Bundle = bundle // for a successor
			}
			return moved
		}
	}
	first := d.ID
	if restored {
		first = ""
	}
	s.group = group.New(c, first, d.Bundle)
	s.memory = idle.OwnMemory()
	s.clients = idle.NewTracker(idle.Config{
		Done: s.group.Done(), NoClient: s.group.ShutdownIdle,
		// containerd runs `delete` next, which takes a shim with a socket for a running one.
		Ends:  func() { _ = l.Close() }, // tried again, and reported, by the caller
		Quiet: func() { s.memory.Trim(); s.group.ShutdownAbandoned() },
		Used:  s.memory.Use,
	})
	return s
}

// run serves. It owns and ends every goroutine of the packages.
func (s *shim) run(ctx context.Context) error {
	s.ending = ctx
	reaperCtx, stopReaper := context.WithCancel(context.Background())
	reaped := make(chan struct{})
	go func() { s.reaper.Run(reaperCtx); close(reaped) }()
	defer func() { stopReaper(); <-reaped }()
	defer s.group.CloseAll()
	if s.group.Shared() {
		defer s.d.RemoveLink() // also if a signal ends the shim
		s.memory.Use()         // not before: a former program's state is read without collections
	}
	defer s.clients.Stop()
	server, err := ttrpc.NewServer(
		ttrpc.WithServerHandshaker(s.clients),
		ttrpc.WithUnaryServerInterceptor(s.clients.Intercept(service.Intercept)),
	)
	if err != nil {
		return fmt.Errorf("make ttrpc server: %w", err)
	}
	service.Register(server, s.group, s.d.Defaults, service.Shim{
		Version: version, Namespace: s.d.Namespace, Started: s.started, Socket: s.d.SocketPath, Containerd: s.d.TTRPCAddress,
		Events: s.events, Clients: s.clients.Clients, Upgrade: s.upgrade,
		Answer: s.d.Answer, Digest: s.d.DigestText(), Address: s.d.SocketAddress(),
	})
	served := make(chan error, 1)
	go func() { //nolint:gosec // its context is no request's: it serves them all, and ends with the listener or Shutdown
		served <- server.Serve(context.Background(), s.clients.Listen(s.listener))
	}()
	warmUp(s.reaper)

	select {
	case <-s.group.Done():
	case <-ctx.Done():
		// Callers may have timed out; finish the stop.
		err = errors.Join(ctx.Err(), s.group.StopContainers())
	case err = <-served:
		served <- nil // so that the end below does not wait for a second answer
		if err = unlessClosed(err); err != nil {
			err = fmt.Errorf("accept calls on %s: %w", s.d.SocketPath, err)
		}
	}
	return errors.Join(err, shutDown(s.clients, server, served, s.events, s.publisher))
}

// warmUp runs the probe of package os for pidfds, which starts a child, 0.3 ms.
func warmUp(reaper *reaper.Reaper) {
	defer reaper.Suspend()()
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release() // there is nothing that could fail
	}
}

// shutDown waits for the calls in flight and the last events.
func shutDown(
	clients *idle.Tracker, server *ttrpc.Server, served <-chan error, events *event.Queue, publisher *service.Publisher,
) error {
	answerCtx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	closeCtx, closeNow := context.WithCancel(answerCtx)
	defer closeNow()
	clients.Drain(answerCtx, closeNow)
	if server.Shutdown(closeCtx) != nil { // a connection that is kept open is not a call in flight
		_ = server.Close() // what it complains of ends with the process
	}
	err := unlessClosed(<-served)
	flushCtx, cancelFlush := context.WithTimeout(context.Background(), flushTimeout)
	defer cancelFlush()
	return errors.Join(err, events.Close(flushCtx), publisher.Close())
}

func unlessClosed(err error) error {
	if errors.Is(err, ttrpc.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

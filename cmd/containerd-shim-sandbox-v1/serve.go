// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/event"
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

// serve answers on l until the shim has nothing left to do, or ctx ends. It owns and ends every goroutine of the
// packages.
func serve(ctx context.Context, d bootstrap.Daemon, l net.Listener) error {
	reaper := reaper.New()
	reaperCtx, stopReaper := context.WithCancel(context.Background())
	reaped := make(chan struct{})
	go func() { reaper.Run(reaperCtx); close(reaped) }()
	defer func() { stopReaper(); <-reaped }()
	publisher := service.NewPublisher(d.Namespace, d.TTRPCAddress)
	events := event.NewQueue(publisher.Publish)
	host := stdio.NewHost(d.Namespace, reaper)
	host.Umask = d.Umask
	tasks := task.New(ociruntime.New(reaper), events, host, extensions()...)
	defer tasks.Close()
	tasks.KeepIndex(d.ID, d.Bundle, d.SocketPath, deleteAnswer)
	pods := sandbox.New(tasks, func(ctx context.Context, r pod.Request) (sandbox.Pod, error) {
		most, _ := limit.ParseSize(d.Options.MaxShmSize) // 0 if it is not set; pkg/options has checked it
		r.MaxShmSize, r.Reaper = most, reaper
		return pod.Create(ctx, r, d.Thread)
	})

	memory := idle.OwnMemory()
	clients := idle.NewTracker(idle.Config{
		Done: tasks.Done(), NoClient: pods.ShutdownIdle,
		// containerd runs `delete` next, which takes a shim with a socket for a running one.
		Ends: func() { _ = l.Close() }, // tried again, and reported, by the caller
		Quiet: func() {
			memory.Trim()
			// A containerd that cannot record the socket removes the bundle, and stays connected (core/runtime/v2/binary.go).
			if _, err := os.Stat(d.Bundle); errors.Is(err, os.ErrNotExist) {
				pods.ShutdownIdle()
			}
		},
	})
	defer clients.Stop()
	server, err := ttrpc.NewServer(
		ttrpc.WithServerHandshaker(clients),
		ttrpc.WithUnaryServerInterceptor(clients.Intercept(service.Intercept)),
	)
	if err != nil {
		return fmt.Errorf("make ttrpc server: %w", err)
	}
	service.Register(server, tasks, pods, d.Defaults, service.Shim{
		Version: version, Started: time.Now(), Socket: d.SocketPath, Containerd: d.TTRPCAddress, Events: events,
		Clients: clients.Clients,
	})
	served := make(chan error, 1)
	go func() { //nolint:gosec // its context is no request's: it serves them all, and ends with the listener or Shutdown
		served <- server.Serve(context.Background(), l)
	}()
	warmUp(reaper)

	select {
	case <-tasks.Done():
	case <-ctx.Done():
		// Callers may have timed out; finish the stop.
		err = errors.Join(ctx.Err(), tasks.StopContainers())
	case err = <-served:
		served <- nil // so that the end below does not wait for a second answer
		if err = unlessClosed(err); err != nil {
			err = fmt.Errorf("accept calls on %s: %w", d.SocketPath, err)
		}
	}
	return errors.Join(err, shutDown(clients, server, served, events, publisher))
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

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

	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/ociruntime"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/podsandbox"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/service"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// Bounds on the end of the shim, when there is no container any more.
const (
	// flushTimeout is for the last events, TaskDelete among them. containerd
	// is there, since it asked for the end; longer than one attempt takes.
	flushTimeout = 10 * time.Second
	// answerTimeout is for the answer to the Shutdown call itself, for which
	// containerd waits 3 s (io.containerd.timeout.shim.shutdown).
	answerTimeout = 3 * time.Second
)

// serve joins the packages and answers on l until the sandbox has nothing left
// to do, or ctx ends. It owns every goroutine that they run, and ends them.
func serve(ctx context.Context, d bootstrap.Daemon, l net.Listener) error {
	reaper := reaper.New()
	reaperCtx, stopReaper := context.WithCancel(context.Background())
	reaped := make(chan struct{})
	go func() { reaper.Run(reaperCtx); close(reaped) }()
	defer func() { stopReaper(); <-reaped }()

	publisher := service.NewPublisher(d.Namespace, d.TTRPCAddress)
	events := event.NewQueue(publisher.Publish)
	box := task.New(d.Namespace, ociruntime.New(reaper), events, reaper.Suspend)
	defer box.Close()
	box.ServeIO(stdio.NewHost(d.Namespace, reaper))
	box.KeepIndex(d.Bundle, d.SocketPath)
	pods := podsandbox.New(box, func(ctx context.Context, r pod.Request) (podsandbox.Pod, error) {
		r.Reaper, r.SystemdCgroup = reaper, r.SystemdCgroup || d.SystemdCgroup
		r.MaxShmSize = d.MaxShmSize
		p, err := pod.Create(ctx, r, d.Thread)
		if err != nil {
			return nil, err // not p: a nil *pod.Pod in an interface is not nil
		}
		return p, nil
	})

	clients := newAttendance(idleTimeout, pods.ShutdownIdle)
	defer clients.stop()
	idle := newRester(ownMemory().giveBack)
	defer idle.stop()
	server, err := ttrpc.NewServer(
		ttrpc.WithServerHandshaker(clients),
		ttrpc.WithUnaryServerInterceptor(idle.intercept(clients.counting(service.Intercept))),
	)
	if err != nil {
		return fmt.Errorf("make ttrpc server: %w", err)
	}
	service.Register(server, box, pods)
	served := make(chan error, 1)
	go func() { //nolint:gosec // its context is no request's: it serves them all, and ends with the listener or Shutdown
		served <- server.Serve(context.Background(), l)
	}()
	warmUp(reaper)

	select {
	case <-box.Done():
	case <-ctx.Done():
		// Those who asked for the end may have given up waiting; what their signal began goes on.
		err = errors.Join(ctx.Err(), box.StopContainers(context.WithoutCancel(ctx)))
	case err = <-served:
		served <- nil // so that the end below does not wait for a second answer
		err = fmt.Errorf("accept calls on %s: %w", d.SocketPath, err)
	}
	return errors.Join(err, windUp(clients, server, served, events, publisher))
}

// warmUp does what the first program that is started would else wait for, while containerd prepares its first call: package os
// tries pidfds out with a child of its own, 0.3 ms.
func warmUp(reaper *reaper.Reaper) {
	defer reaper.Suspend()()
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release() // there is nothing that could fail
	}
}

// windUp lets the calls in flight be answered and the last events be sent.
func windUp(clients *attendance, server *ttrpc.Server, served <-chan error, events *event.Queue, publisher *service.Publisher) error {
	answerCtx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	closeCtx, closeNow := context.WithCancel(answerCtx)
	defer closeNow()
	clients.settle(answerCtx, closeNow)
	if err := server.Shutdown(closeCtx); err != nil {
		// A connection that is kept open is no call in flight, and a call that came too late is nobody's to wait for.
		log.L.WithError(err).Debug("end calls")
		_ = server.Close() // what it complains of ends with the process
	}
	err := <-served
	if errors.Is(err, ttrpc.ErrServerClosed) {
		err = nil // as asked
	}
	flushCtx, cancelFlush := context.WithTimeout(context.Background(), flushTimeout)
	defer cancelFlush()
	return errors.Join(err, events.Close(flushCtx), publisher.Close())
}

// remove removes what a dead shim left of a container, of a sandbox, or of all that were with it in a pod.
func remove(ctx context.Context, namespace, id, bundle string) (exit, error) {
	pid, e, err := cleanup.Request{
		Namespace: namespace, ID: id, Bundle: bundle,
		Container: ociruntime.Remove,
		Pod:       pod.Remove,
		Serves:    func(socket string) (bool, error) { return bootstrap.Serves(ctx, socket, id) },
	}.Run(ctx)
	return exit{Pid: pid, Status: e.Status, At: e.At}, err
}

// runtimeFeatures is what -info answers about the OCI runtime specification.
func runtimeFeatures() *features.Features {
	f := ociruntime.Features()
	f.PotentiallyUnsafeConfigAnnotations = append(f.PotentiallyUnsafeConfigAnnotations, settings.UnsafeAnnotations()...)
	return f
}

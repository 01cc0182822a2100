// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
)

// startTimeout bounds start as a whole. containerd sets none: it waits for the end of our output.
const startTimeout = 10 * time.Second

// joinAttempts bounds how often start meets a socket whose daemon dies before it answers.
const joinAttempts = 3

// start answers `start`: it forks a daemon for the container's group, or finds the group's daemon alive, and writes
// the socket's address to stdout in the form the caller reads. Until then nothing is written anywhere but to the log.
func start(f flags, stdin *os.File, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	bundle, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("start %q: %w", f.id, err)
	}
	defer logToFifo(bundle, f.debug)()
	input, err := readInput(stdin)
	if err != nil {
		return fmt.Errorf("start %q: %w", f.id, err)
	}
	r, err := parseRequest(input, f, func() dialect { return legacyDialect(os.LookupEnv, callerBuild) })
	if err != nil {
		return fmt.Errorf("start %q: %w", f.id, err)
	}
	path, answered, err := startIn(ctx, f, r, bundle)
	if err != nil {
		return fmt.Errorf("start %q: %w", f.id, err)
	}
	defer func() { _ = answered.Close() }() // nil when another start's daemon is joined
	data, err := encodeAnswer(r.dialect, socketAddress(path))
	if err != nil {
		return fmt.Errorf("start %q: %w", f.id, err)
	}
	// If this write fails the caller is gone, and so is the daemon as soon as it sees us end.
	if _, err := stdout.Write(data); err != nil || answered == nil {
		return err
	}
	_, err = answered.Write([]byte{1})
	return err
}

// startIn does the work of start in bundle and returns the socket's path. A daemon that it forked ends unless a byte
// comes on answered.
func startIn(ctx context.Context, f flags, r request, bundle string) (path string, answered *os.File, err error) {
	opts, err := parseOptions(r.options)
	if err != nil {
		return "", nil, err
	}
	g, err := group(bundle, f.id)
	if err != nil {
		return "", nil, err
	}
	dir, err := socketDir(r.socketDir, os.Geteuid(), os.Getenv)
	if err != nil {
		return "", nil, err
	}
	path, err = socketPath(dir, r.grpcAddress, f.namespace, g)
	if err != nil {
		return "", nil, err
	}
	if err := recordSocket(bundle, path); err != nil {
		return "", nil, err
	}
	for range joinAttempts {
		l, err := listen(ctx, path)
		if err == nil {
			answered, err := spawn(ctx, l, launch{
				bundle:      bundle,
				args:        daemonArgs(f, r),
				env:         append(daemonEnv(os.Environ(), f, r), driverEnv(opts)...),
				cgroup:      opts.ShimCgroup,
				coreSched:   os.Getenv("SCHED_CORE") != "",
				oomScoreAdj: true,
			})
			return path, answered, err
		}
		if !errors.Is(err, errdefs.ErrAlreadyExists) {
			return "", nil, err
		}
		err = ping(ctx, path, f.id)
		if err == nil {
			log.L.WithField("group", g).Debug("joined the group's shim")
			return path, nil, nil
		}
		if ctx.Err() != nil {
			return "", nil, fmt.Errorf("join the shim of group %q: %w", g, err)
		}
		// It died between listening and answering: another start failed, or the last container of the pod went. The
		// socket is dead now, and the next attempt replaces it.
	}
	return "", nil, fmt.Errorf("join the shim of group %q: it ended %d times: %w", g, joinAttempts, errdefs.ErrUnavailable)
}

// ping returns nil once the daemon behind path answers a request, whatever the answer. A socket that accepts is not
// enough: it listens before its daemon runs, and the daemon may still fail.
func ping(ctx context.Context, path, id string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // the answer is in, or there is none
	_, err = task.NewTTRPCTaskClient(client).Connect(ctx, &task.ConnectRequest{ID: id})
	if ctx.Err() != nil {
		return fmt.Errorf("ping %s: %w", path, ctx.Err())
	}
	if _, answered := status.FromError(err); answered {
		return nil
	}
	return fmt.Errorf("ping %s: %w", path, err)
}

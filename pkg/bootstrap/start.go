// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package bootstrap makes a shim of the process that containerd starts: it reads what each version of containerd asks
// of `start`, finds or makes the socket of the container's group, becomes a daemon, and answers.
//
// Goroutines: the daemon has one for signals; [Start] and [ServeOn] end and join it.
// Locks: the flock of the socket directory is held over a few system calls only, never over a fork or an RPC.
//
// Promises: start writes its answer to stdout and nothing else anywhere, since containerd reads stdout and stderr as
// one stream. A start that fails leaves neither daemon nor socket, and a daemon that fails leaves no socket. Two starts
// at once give one daemon.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// startTimeout bounds start as a whole. containerd sets none: it waits for the end of our output.
const startTimeout = 10 * time.Second

// joinAttempts bounds how often start meets a socket whose daemon dies before it answers.
const joinAttempts = 3

// Start answers `start`: it becomes the daemon of the container's group, or finds that alive, and writes the socket's
// address to stdout in the form that the caller reads. Until then nothing is written anywhere but to the log. It
// returns when the daemon ends. It is called on the main goroutine.
//
// It runs in a process that detach.c split off. The one that containerd waits for ends once containerd has its answer;
// after an error it ends as this one does, and there is neither daemon nor socket. Killing that one also kills this
// process, which may leave a socket on which nobody listens.
func Start(a Args, stdin *os.File, serve ServeFunc) error {
	d, l, err := begin(a, stdin)
	if err != nil {
		return fmt.Errorf("start %q: %w", a.ID, err)
	}
	if l == nil {
		return nil // containerd has the address of another daemon
	}
	return runDaemon(d, l, serve)
}

// begin performs every step before the answer to containerd, and that. The listener is nil where another daemon's
// address is the answer. It runs on the main thread while there is hardly another: a second goroutine, even that of
// os/signal, would make the runtime start a thread, and containerd wait for it.
func begin(a Args, stdin *os.File) (Daemon, *net.UnixListener, error) {
	if err := checkDetached(); err != nil {
		return Daemon{}, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	bundle, err := os.Getwd()
	if err != nil {
		return Daemon{}, nil, err
	}
	defer logToFifo(bundle, a.Debug)()
	input, err := ReadInput(stdin)
	if err != nil {
		return Daemon{}, nil, err
	}
	r, err := parseRequest(input, a, func() protocolVersion { return legacyVersion(os.LookupEnv, callerBuild) })
	if err != nil {
		return Daemon{}, nil, err
	}
	opts, err := parseOptions(r.options)
	if err != nil {
		return Daemon{}, nil, err
	}
	path, group, err := groupSocket(r, bundle)
	if err != nil {
		return Daemon{}, nil, err
	}
	answer, err := encodeAnswer(r.version, socketAddress(path))
	if err != nil {
		return Daemon{}, nil, err
	}
	l, err := listenOrJoin(ctx, path, group, a.ID)
	if err != nil {
		return Daemon{}, nil, err
	}
	if l == nil {
		return Daemon{}, nil, reply(ctx, syscall.Stdout, answer)
	}
	d := Daemon{
		Args: r.Args, Bundle: bundle, SocketPath: path, TTRPCAddress: r.ttrpcAddress,
		SystemdCgroup: opts.SystemdCgroup, MaxShmSize: opts.MaxShmSize,
	}
	if err := detach(ctx, d, opts.ShimCgroup, answer); err != nil {
		return Daemon{}, nil, errors.Join(err, retire(l))
	}
	return d, l, nil
}

// reply writes the answer to stdout. Not by an [os.File], which ends the program where containerd has hung up. ctx has
// a deadline, which bounds the wait for room in a pipe that is non-blocking, whoever made it so.
func reply(ctx context.Context, stdout int, answer []byte) error {
	deadline, _ := ctx.Deadline()
	for len(answer) > 0 {
		n, err := unix.Write(stdout, answer)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			if ctx.Err() != nil {
				return fmt.Errorf("write stdout: it is full, and nobody reads: %w", ctx.Err())
			}
			wait := max(1, int(time.Until(deadline).Milliseconds())) // in ms; not for ever, as a negative one
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(stdout), Events: unix.POLLOUT}}, wait)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("poll", err)
			}
		case err != nil:
			return &os.PathError{Op: "write", Path: os.Stdout.Name(), Err: err}
		default:
			answer = answer[n:]
		}
	}
	return nil
}

// groupSocket finds the group of the container and the group's socket, and records the socket in bundle.
func groupSocket(r request, bundle string) (path, group string, err error) {
	group, err = shimGroup(bundle, r.ID)
	if err != nil {
		return "", "", err
	}
	dir, err := socketDir(r.socketDir)
	if err != nil {
		return "", "", err
	}
	path, err = socketPath(dir, r.Address, r.Namespace, group)
	if err != nil {
		return "", "", err
	}
	return path, group, recordSocket(bundle, path)
}

// listenOrJoin listens on path, or returns nil where the group has a living daemon there.
func listenOrJoin(ctx context.Context, path, group, id string) (*net.UnixListener, error) {
	for range joinAttempts {
		l, err := listen(ctx, path)
		if !errors.Is(err, errdefs.ErrAlreadyExists) {
			return l, err
		}
		err = ping(ctx, path, id)
		if err == nil {
			log.L.WithField("group", group).Debug("joined the group's shim")
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("join the shim of group %q: %w", group, err)
		}
		// It died between listening and answering: another start failed, or the last container of the pod went. The
		// socket is dead now, and the next attempt replaces it.
	}
	return nil, fmt.Errorf("join the shim of group %q: it ended %d times: %w", group, joinAttempts, errdefs.ErrUnavailable)
}

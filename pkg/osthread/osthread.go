// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package osthread runs functions on a particular thread: [Run] on one of their own, [Thread.Do] on the first one,
// whose namespaces /proc/PID/ns shows (docs/decisions/0005-main-thread-is-the-pod.md). A child that is to die with the
// process (PR_SET_PDEATHSIG) has to be forked by a thread that lives as long.
//
// The init function locks the main goroutine to the first thread, where only [Main] serves calls of [Thread.Do], one at
// a time. A program that does not call Main must not call [Run]. There is no lock.
package osthread

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/containerd/errdefs"
)

func init() { runtime.LockOSThread() }

// Run runs f on a thread that is not the first one and ends after it. So f may change what belongs only to the thread,
// such as its namespaces or its user.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f
		runtime.LockOSThread() // and does not unlock, so the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// Thread is the process's first thread.
type Thread struct {
	calls chan func()
	ended chan struct{} // closed when Main's function has returned
}

// Main runs f on another goroutine, serves the Thread until f returns, and returns f's result. Only main calls it.
func Main[T any](f func(*Thread) T) T {
	t := &Thread{calls: make(chan func()), ended: make(chan struct{})}
	var result T
	go func() { // ends with f, and Main with it
		defer close(t.ended)
		result = f(t)
	}()
	for {
		select {
		case call := <-t.calls:
			call()
		case <-t.ended:
			return result
		}
	}
}

// recovered calls f, and returns a panic of f as an error: on the main goroutine it would end the process.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s: %w", p, debug.Stack(), errdefs.ErrInternal)
		}
	}()
	return f()
}

// Do runs f on the thread. ctx bounds the wait for its turn. After the end of Main the error is errdefs.ErrUnavailable.
func (t *Thread) Do(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if ctx.Err() != nil { // select would choose at random
		return fmt.Errorf("wait for the main thread: %w", context.Cause(ctx))
	}
	select {
	case t.calls <- func() { done <- recovered(f) }:
		return <-done
	case <-t.ended:
		return fmt.Errorf("run on the main thread: the shim ends: %w", errdefs.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("wait for the main thread: %w", context.Cause(ctx))
	}
}

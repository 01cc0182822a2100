// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package osthread runs functions on a particular thread: [Run] on one of their own, [Thread.Do] on the first one,
// whose namespaces /proc/PID/ns shows (docs/decisions/0005-main-thread-is-the-pod.md). A child that is to die with the
// process (PR_SET_PDEATHSIG) has to be forked by a thread that lives as long.
//
// The init function locks the main goroutine to the first thread, where only [Main] serves calls of [Thread.Do], one at
// a time. A program that does not call Main must not call [Run]. There is no lock.
package osthread

import "runtime"

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
type Thread struct{ calls chan func() }

// Main runs f on another goroutine, serves the Thread until f returns, and returns f's result. Only main calls it.
func Main[T any](f func(*Thread) T) T {
	t := &Thread{calls: make(chan func())}
	ended := make(chan struct{})
	var result T
	go func() { // ends with f, and Main with it
		defer close(ended)
		result = f(t)
	}()
	for {
		select {
		case call := <-t.calls:
			call()
		case <-ended:
			return result
		}
	}
}

// Do runs f on the thread. It does not return after the end of Main, which is that of the program.
func (t *Thread) Do(f func() error) error {
	done := make(chan error, 1)
	t.calls <- func() { done <- f() }
	return <-done
}

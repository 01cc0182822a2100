// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import "sync"

// shared lets those who ask for the same thing at the same time have one answer. Its zero value is ready.
type shared[T any] struct {
	mu   sync.Mutex
	work *work[T] // under way, or nil
}

type work[T any] struct {
	done   chan struct{} // closed when result and err are set
	result T
	err    error
}

// do returns what f returns, or what the f of another caller returns that is under way. f runs without a lock, one at a
// time, in the goroutine of the caller that came first; nothing is kept after it.
func (s *shared[T]) do(f func() (T, error)) (T, error) {
	s.mu.Lock()
	if w := s.work; w != nil {
		s.mu.Unlock()
		<-w.done
		return w.result, w.err
	}
	w := &work[T]{done: make(chan struct{})}
	s.work = w
	s.mu.Unlock()

	w.result, w.err = f()
	s.mu.Lock()
	s.work = nil
	s.mu.Unlock()
	close(w.done)
	return w.result, w.err
}

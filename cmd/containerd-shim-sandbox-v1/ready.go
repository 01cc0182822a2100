// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// The daemon's first word, over a pipe to the start that forked it: readyWord, or the text of the error that stopped
// it. A pipe that ends without a word means the daemon died.
const (
	readyEnv  = "CONTAINERD_SHIM_SANDBOX_READY_FD"
	readyWord = "ready"
	// maxFirstWord bounds what start reads; an error is a line.
	maxFirstWord = 64 << 10
)

// announcer is the daemon's end of the pipes to the start that forked it. The zero value announces to nobody: a daemon
// that was started by hand.
type announcer struct {
	once   sync.Once
	pipe   *os.File
	answer *os.File // start writes a byte to it once containerd has its answer
}

// openAnnouncer takes over the pipe that the environment names and removes the name, so that no child looks for it.
func openAnnouncer() (*announcer, error) {
	v, ok := os.LookupEnv(readyEnv)
	if !ok {
		return &announcer{}, nil
	}
	if err := os.Unsetenv(readyEnv); err != nil {
		return nil, fmt.Errorf("%s: %w", readyEnv, err)
	}
	fd, err := strconv.Atoi(v)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("%s=%q: not a descriptor: %w", readyEnv, v, errdefs.ErrInvalidArgument)
	}
	unix.CloseOnExec(fd)
	unix.CloseOnExec(fd + 1)
	return &announcer{pipe: os.NewFile(uintptr(fd), "ready"), answer: os.NewFile(uintptr(fd+1), "answer")}, nil
}

// awaitAnswer returns when start has answered containerd, or has died: then it calls unanswered, because nobody may
// ever ask this daemon for anything. start lives for seconds at most, so this is bounded.
func (a *announcer) awaitAnswer(unanswered func()) {
	if a.answer == nil {
		return
	}
	defer func() { _ = a.answer.Close() }() // only read from
	if n, _ := a.answer.Read(make([]byte, 1)); n == 0 {
		unanswered()
	}
}

// say sends the first word and closes the pipe; later calls do nothing. The error is EPIPE when the start that forked
// us is gone: it was killed, so nobody knows this daemon and it should end.
func (a *announcer) say(word string) (err error) {
	a.once.Do(func() {
		if a.pipe == nil {
			return
		}
		_, err = io.WriteString(a.pipe, word)
		err = errors.Join(err, a.pipe.Close())
	})
	return err
}

// awaitReady reads the daemon's first word from r. It returns nil for readyWord only, and gives up when ctx ends.
func awaitReady(ctx context.Context, r *os.File) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := r.SetReadDeadline(deadline); err != nil {
			return fmt.Errorf("wait for the daemon: %w", err)
		}
	}
	word, err := io.ReadAll(io.LimitReader(r, maxFirstWord))
	switch {
	case string(word) == readyWord:
		return nil
	case len(word) > 0:
		return errors.New(string(word))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it was not ready in time: %w", context.DeadlineExceeded)
	case err != nil:
		return fmt.Errorf("wait for the daemon: %w", err)
	}
	return fmt.Errorf("it ended before it was ready: %w", errdefs.ErrUnavailable)
}

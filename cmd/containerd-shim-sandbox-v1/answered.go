// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// answeredEnv names the daemon's end of a pipe from the start that forked it. A byte comes once containerd has the
// daemon's address. The pipe that ends without one tells that start died before that.
const answeredEnv = "CONTAINERD_SHIM_SANDBOX_ANSWERED_FD"

// openAnswered takes over the pipe that the environment names and removes the name, so that no child looks for it. It is
// nil in a daemon that was started by hand.
func openAnswered() (*os.File, error) {
	v, ok := os.LookupEnv(answeredEnv)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(answeredEnv); err != nil {
		return nil, fmt.Errorf("%s: %w", answeredEnv, err)
	}
	fd, err := strconv.Atoi(v)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("%s=%q: not a descriptor: %w", answeredEnv, v, errdefs.ErrInvalidArgument)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "answered"), nil
}

// awaitAnswer returns when start has answered containerd, or has died: then it calls unanswered, because nobody may
// ever ask this daemon for anything. start lives for seconds at most, so this is bounded.
func awaitAnswer(answered *os.File, unanswered func()) {
	if answered == nil {
		return
	}
	defer func() { _ = answered.Close() }() // only read from
	if n, _ := answered.Read(make([]byte, 1)); n == 0 {
		unanswered()
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// What libcontainer calls its own program until it becomes that of the container (libcontainer/nsenter/nsexec.c).
const stageName = "runc:[2:INIT]\n"

// How long a signal or an exec waits for the container's program, and how often it looks. StartContainer hooks, which run
// before it, can take longer; the signal is libcontainer's then.
const (
	beginTimeout = 50 * time.Millisecond
	beginPoll    = 200 * time.Microsecond
)

// initProcess is init as others see it. Start answers when init is about to become its program, which takes the kernel a
// while. A SIGTERM before that would end libcontainer's program, with status 2, and not be for the container's, which may handle
// or ignore it. So a signal waits for that, as does an exec, which may send one; and not Start.
type initProcess struct {
	*handle
	container *container
}

// Init implements process.Runtime.
func (c *container) Init() process.Handle { return initProcess{c.init, c} }

func (i initProcess) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		i.container.awaitProgram()
	}
	return i.handle.Signal(sig)
}

// awaitProgram returns when init runs its program, or is dead, or beginTimeout is over.
func (c *container) awaitProgram() {
	if !c.beginning.Load() {
		return
	}
	path := fmt.Sprintf("/proc/%d/comm", c.init.pid)
	for end := time.Now().Add(beginTimeout); time.Now().Before(end); <-time.After(beginPoll) {
		if name, err := os.ReadFile(path); err != nil || string(name) != stageName {
			c.beginning.Store(false)
			return
		}
	}
}

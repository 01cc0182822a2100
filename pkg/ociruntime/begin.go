// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// How long a signal or an exec waits for the container's program, and how often it looks. It is there at once, but on a machine
// that is short of CPU time. StartContainer hooks, which run before it, can take as long as they like, so with these it is less;
// the signal is libcontainer's then.
const (
	beginTimeout     = time.Second
	beginHookTimeout = 50 * time.Millisecond
	beginPoll        = 200 * time.Microsecond
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

// awaitProgram returns when init runs its program, or is dead, or its time is over.
func (c *container) awaitProgram() {
	if !c.beginning.Load() {
		return
	}
	timeout := beginTimeout
	if h := c.config.Spec.Hooks; h != nil && len(h.StartContainer) > 0 {
		timeout = beginHookTimeout
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); <-time.After(beginPoll) {
		if program, err := executable(c.init.pid); err != nil || !os.SameFile(program, c.stage) {
			c.beginning.Store(false)
			return
		}
	}
}

// executable is the file that a process runs. A container can give its program any name, but not make it run the sealed
// copy of our binary that is the first stage of its init.
func executable(pid int) (os.FileInfo, error) { return os.Stat(fmt.Sprintf("/proc/%d/exe", pid)) }

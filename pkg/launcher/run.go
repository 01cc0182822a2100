// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// run adds the last steps, following standard_init_linux.go from exec.LookPath on.
func (b *initBuilder) run(env native.Word) {
	b.lookup(b.Request)
	b.HandleSignals()
	late := b.FilterLast()
	if b.pidNamespace < 0 {
		b.becomeLeader()
	}
	if !late {
		b.loadLateFilter(b.Request)
	}
	if b.pidNamespace >= 0 {
		b.Fork(0).OnError("clone")
		b.becomeLeader()
	}
	b.Hold()
	if b.Reaped {
		const sizeOfSigset = 8
		b.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, b.Table(uint64(math.MaxUint64)), 0, sizeOfSigset).
			OnError("block signals")
	}
	if late {
		b.loadLateFilter(b.Request)
	}
	if b.Reaped {
		b.ExecInit(b.reaped, b.Args, env).OnError("run the init")
		return
	}
	b.exec(b.Request, env)
}

// becomeLeader follows nsenter/nsexec.c, stage 2, and system.Setctty.
func (b *initBuilder) becomeLeader() {
	b.Call(unix.SYS_SETSID).OnError("setsid failed")
	if b.Terminal != nil && !b.Reaped { // else the program gets it, in a session of its own
		b.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0).OnError("ioctl(setctty)")
	}
}

// limit has the shim set the resource limits. HOME is looked up first: a limit of descriptors may forbid it.
func (c *command) limit(r *native.Request, env native.Word) {
	if c.FindHome {
		r.FindHome(c.UID, env, len(c.Env))
	}
	r.Wait(c.setRlimits)
}

func (c *command) setRlimits(pid int) error {
	for _, l := range c.Rlimits {
		if err := unix.Prlimit(pid, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("error setting rlimits for ready process: error setting rlimit type %d: %w", l.Resource, err)
		}
	}
	return nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package process runs one container: its init process and its execs. It knows neither a wire format nor an OCI
// runtime. pkg/ociruntime implements [Runtime]; events go to [event.Queue].
//
// # Goroutines
//
// Each Process has one waiter (exit.go). It starts when the kernel process exists, is the only one that waits for it,
// and ends after the exit is published and the output is drained. [Container.Delete] joins it. The timers of an exec
// with limits call Kill in goroutines of their own (run.go); the waiter stops them.
//
// # Locks
//
// opLock, a channel with one slot, serializes the lifecycle operations of one process and its exit. It may be held
// during slow kernel work. A caller whose context ends gives up waiting for it. The state changes with opLock and mu
// held, as state.go allows; Delete of a container changes that of an exec that is Created with mu alone.
//
// Two gates (gate.go) order the starts of execs. starts: an exec is inside while it is being started; Pause, Resume and
// Checkpoint exclude them, since an exec that joined a frozen cgroup would hang in the middle of its set-up. Waiting
// ends with the caller's context or when init exits, so that the exit gets opLock. A freeze also gives up after 10 s,
// so that an exec that hangs does not block those behind it forever. exits: an exec is inside until its exit is
// published; init's exit waits for all, and init's kill or exit closes the gate.
//
// mu guards fields and is never held across anything that blocks. Order: opLock, starts, ioLock, Container.mu,
// Process.mu. Status, Pid, Wait and Kill take only mu, so they answer while Create, Start, Pause,
// Update or Delete hangs (containerd gives State 2 s: core/runtime/v2, io.containerd.timeout.task.state).
//
// # Promises
//
// The order of events is containerd's contract (docs/runtime-v2.md). "Published" means put into the queue.
//
//	P1  create, start, exit, delete of a process are published in this order; a step
//	    that did not happen is left out.
//	P2  exec-added, exec-started and the exit of an exec are published in this order.
//	P3  the exit of init is the last exit of its container.
//	P4  no exec starts after init has exited.
//	P5  an OOM kill is published after the start of init and before the exit that it caused.
//	P6  Wait returns after the exit was published.
//	P7  Delete returns after the events of the container were delivered, or half a
//	    second later.
//
// P1 and P2 hold because an exit takes opLock: a Start in flight finishes and publishes first. P3 and P4 hold because
// init's waiter closes the gate exits before it waits for the execs inside. P5 holds because the waiter reads the OOM
// counter before it publishes the exit; if systemd has already removed the cgroup, see [cgroup.OOMWatch.CheckKilled].
package process

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package process runs one container: its init process and its execs.
//
// It knows no wire format and no OCI runtime. The runtime is reached through
// [Runtime], which pkg/ociruntime implements; what happens is told through
// [event.Queue].
//
// # Goroutines
//
// Each Process that came to life has one waiter (exit.go). It starts when the
// kernel process exists, is the only one that waits on it, and ends after the
// exit is told and the output is drained. [Process.Delete] joins it. The timer of
// an exec's deadline runs Kill in a goroutine of its own; the waiter stops it.
//
// # Locks
//
// turn, a channel with one slot, makes the lifecycle operations of one process
// and its exit take turns. It may be held over slow kernel work, and a caller
// whose context ends gives up waiting for it. Container.freezing is held by each
// exec that is being started, or by the one Pause, Resume or Checkpoint that keeps
// them out. Waiting for it ends with the caller's context and with init's death, so
// that the exit gets the turn, and that of those three after 10 s, so
// that an exec that hangs does not keep out those behind it for ever. A signal to
// all processes holds it where it is free: it freezes and thaws them meanwhile.
//
// mu guards fields and is never held across anything that blocks. Order: turn,
// then freezing, then Container.mu or Process.mu; the two are never held
// together. State, Pid, Wait and Kill take only mu, so they answer while Create,
// Start, Pause, Update or Delete hangs (containerd gives State 2 s:
// core/runtime/v2, io.containerd.timeout.task.state). Kill thaws by itself: the
// runtime's Resume is for those who hold the turn.
//
// # Promises
//
// The order of events is containerd's contract (docs/runtime-v2.md):
//
//	P1  create, start, exit, delete of a process are told in this order; a step
//	    that did not happen is left out.
//	P2  exec-added, exec-started and the exit of an exec are told in this order.
//	P3  the exit of init is the last exit of its container.
//	P4  no exec starts after init has exited.
//	P5  an OOM kill is told before the exit that it caused.
//	P6  Wait returns after the exit was told.
//
// P1 and P2 hold because an exit takes the turn: a Start in flight finishes and
// tells first. P3 and P4 hold because an exec's Start counts itself in under the
// same lock under which init's waiter marks init as gone, and init's waiter
// waits for that count to reach zero. P5 holds because the waiter reads the OOM
// counter itself before it tells the exit.
package process

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stdio carries the standard streams of one process, a container's
// init or an exec, between the process and what containerd named for it: fifos
// or files. The process gets pipes, or a terminal.
//
// # Goroutines
//
// A [Streams] owns one goroutine per stream that is copied. They start in
// [Streams.Started]. Each ends when its source does, or in [Streams.Close],
// which joins them all. A reader that does not read blocks the goroutine of its
// own stream and nothing else. An idle stream costs neither CPU nor a buffer:
// the goroutine waits in the runtime's poller.
//
// # Locks
//
// Streams.mu guards the fields of a Streams and copier.mu the counters of one
// copier. Neither is held across anything that blocks, and the two are never
// held together.
//
// # Promises
//
//   - Open opens all streams or none, and never waits for a peer.
//   - What the process wrote before it exited is handed on as long as somebody
//     reads. A reader may go away and another come: both ends of an output fifo
//     are held open here, so what is written meanwhile waits in the fifo.
//   - The reader of an output sees its end as soon as the last process that
//     holds the other end of the pipe has closed it, not only at Close. A
//     terminal can be opened again as long as the process lives, so its end
//     shows once Drain was called. containerd's client waits for that end
//     before it asks for Delete (containerd client/task.go, Delete).
//   - Drain waits for a reader as long as its caller lets it. Close does not wait
//     for peers.
//   - No descriptor made here is inherited by a child, but for the files that
//     the caller passes to it.
//
// # Not here
//
// Logging binaries and CRI's streaming are refused with
// errdefs.ErrNotImplemented. With a terminal, a stderr of its own is accepted
// and stays unused.
package stdio

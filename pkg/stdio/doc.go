// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stdio carries the standard streams of one process, a container's
// init or an exec, between the process and what containerd named for it: fifos,
// files, a logging binary, or the clients of an [StreamRegistry]. The process gets
// pipes, or a terminal.
//
// # Goroutines
//
// A [Streams] owns one goroutine per stream that is copied. They start in
// [Streams.Started]. Each ends when its source does, or in [Streams.Close],
// which joins them all. A reader that does not read blocks the goroutine of its
// own stream and nothing else. An idle stream costs neither CPU nor a buffer:
// the goroutine waits in the runtime's poller. One whose output has ended and has
// bytes that nobody came to read waits with a thread, by package fifo. A logging
// binary has two more, which end with it; Close waits for them. [StreamRegistry.Serve]
// starts none.
//
// # Locks
//
// Streams.mu guards the fields of a Streams and copier.mu the counters of one
// copier; StreamRegistry.mu its maps and stream.mu the hold on a stream's stdin. None
// is held across anything that blocks, and no two are held together.
//
// # Promises
//
//   - Open opens all streams or none. It waits for the reader of a fifo, a second
//     at most, and for no other peer but a logging binary.
//
//   - What the process wrote before it exited is handed on as long as somebody
//     reads. A reader may go away and another come: both ends of an output fifo
//     are held open here, so what is written meanwhile waits in the fifo.
//
//   - The reader of an output sees its end as soon as the last process that
//     holds the other end of the pipe has closed it, not only at Close. A
//     terminal can be opened again as long as the process lives, so its end
//     shows once Drain was called, whoever else has it open then. containerd's
//     client waits for that end before it asks for Delete (containerd
//     client/task.go, Delete).
//
//   - Drain waits for a reader, and for processes that were left behind with an
//     output, as long as its caller lets it. Where Config.KeepUnread sets a bound,
//     output whose reader is away then is given up; what processes that were left
//     behind write from then on is dropped, and they neither block nor die of it.
//     Close does not wait for peers, but for a logging binary, which is made to
//     end.
//
//   - A process neither dies nor blocks because its logging binary did. What it
//     writes then is lost, which is said once.
//
//   - No descriptor made here is inherited by a child, but for the files that
//     the caller passes to it.
//
//   - With a terminal, a stderr that is named stays unused and is not opened,
//     unless Config.SplitStderr is set.
//
// # Not here
//
// Who puts the terminal on the descriptors of the process: the launcher of
// execs can leave it a stderr beside the terminal; libcontainer puts the
// terminal on all of 0, 1 and 2 (libcontainer/console_linux.go, dupStdio), and
// then what stderr was to lead to comes to its end in Started.
package stdio

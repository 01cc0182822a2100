// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package notify is the receiving side of sd_notify(3): a program tells by a datagram on a socket that it is ready,
// what it is doing, and what went wrong.
//
// # Goroutines and locks
//
// A [Receiver] has one goroutine from Receive on, which reads the socket. Close ends and joins it. mu guards what was
// told so far and is never held over anything that blocks.
//
// # Promises
//
//   - Only what a process of the container sends is looked at: the kernel says who sent a datagram, and the sender's
//     cgroup is asked (pkg/cgroup, Contains). From others nothing is taken but the descriptors, to be closed.
//   - A sender cannot make the shim busy: of more than a hundred messages in a second the rest waits, and the senders
//     with them, since the kernel's queue is short. Nor can it fill the log.
//   - Whatever a datagram holds, it is read as a whole or not at all, into memory of a fixed size.
//   - A descriptor that is sent along is closed once its message and all before it have taken effect, which is what
//     sd_notify_barrier(3) waits for.
package notify

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package event defines what happens to a container as containerd is told of it, and the queue that tells it in order.
//
// A Queue owns one goroutine, the publisher. It starts in NewQueue and is ended and joined by Close. One mutex guards the
// list; it is never held while an event is published, so Put cannot block on a receiver that is slow or away.
//
// Promises:
//   - events are published in the order of their Put calls, one at a time: an event is not tried before the one ahead of
//     it was accepted or rejected. Promises P1 to P6 of the shim rest on this.
//   - an event is dropped only when the receiver rejects it, when it is put after Close, or when Close runs out of time;
//     each of these is logged or returned.
//   - an event may be published twice, when a receiver took it and its answer was lost.
//   - OOM kills of a container that follow each other are one event while that one waits to be sent. Each exit still has
//     its own before it.
//
// The queue has no bound, on purpose. Each exec and each container makes a fixed number of events, apart from its OOM
// kills, and what starts them is the receiver: while containerd is away nobody can start any, so the queue ends at what
// the running ones can still report. A bound would have to drop an exit or block the waiter that reports it, and both
// lose what the queue is for.
//
// The package knows neither topics nor protobuf; the service package turns an Event into containerd's message.
package event

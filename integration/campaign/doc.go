// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package campaign drives a real containerd and its shims with operations and faults that a seed chooses, and checks
// every answer and every event.
//
// A worker has namespaces and a containerd of its own. It works in rounds of some thousand operations. The steps of a
// round follow from seed and number of the round alone: what the shim answers does not change them. A round begins and
// ends with nothing but the bystanders, containers that live as long as the worker and that no step concerns. What else
// is there at its end is a leak.
//
// [Generate] chooses the steps, by a model of the state table (docs/events.md). The model holds for each container all
// states in which it can be, since a program may have ended or not when the next call comes. An answer that is
// possible in none of them is a violation, as is an event that breaks one of the promises P1 to P6 of pkg/process. Two
// steps at once must answer as if one had come after the other.
//
// A failure is a list of steps. Any part of a list of steps is a list of steps: the model knows what each operation
// answers in each state.
//
// # Goroutines
//
// A worker's steps run in one goroutine. Those that it starts for a fault, for a second operation at the same time and
// for the streams of a process are joined before the step ends, or with the process. One goroutine reads the events;
// it ends with the subscription.
package campaign

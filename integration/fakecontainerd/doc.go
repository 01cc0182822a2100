// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package fakecontainerd plays containerd for a shim, without containerd: it makes bundles, starts the shim binary as
// each generation of containerd does, records the events that the shim forwards, and calls the Task service in either
// version. Tests can do with it what containerd's client would refuse: wrong states, bad bundles, a sink for events
// that goes away at the worst time.
//
// A Fake owns the goroutine that serves the sink; SinkDown and the end of the test join it.
package fakecontainerd

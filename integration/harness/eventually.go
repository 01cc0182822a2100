// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// pollInterval is short beside what is waited for: a container's start takes some tens of milliseconds.
const pollInterval = 5 * time.Millisecond

// patience bounds every wait of the tests. It is long since a test machine can be slow; nothing waits it out when all
// is well.
var patience = Slow(20 * time.Second)

// Slowness is how many times slower than usual the machine is. SHIM_TEST_SLOWNESS says so of an emulated one.
func Slowness() int {
	n, err := strconv.Atoi(os.Getenv("SHIM_TEST_SLOWNESS"))
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// Slow is how long this machine may take for what another does within d.
func Slow(d time.Duration) time.Duration { return d * time.Duration(Slowness()) }

// Fewer is how often this machine does what another does n times.
func Fewer(n int) int { return max(n/Slowness(), 1) }

// Eventually polls until cond returns nil. When it does not within the patience of the tests, the test ends with what
// was waited for and cond's last error.
func Eventually(tb testing.TB, what string, cond func() error) {
	tb.Helper()
	if err := poll(patience, cond); err != nil {
		tb.Fatalf("%s: not within %v: %v", what, patience, err)
	}
}

// Poll is Eventually for what is not a test: it returns cond's last error.
func Poll(cond func() error) error { return poll(patience, cond) }

// poll calls cond until it returns nil or limit has passed, and returns its last error.
func poll(limit time.Duration, cond func() error) error {
	deadline := time.After(limit)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return err
		}
	}
}

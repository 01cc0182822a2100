// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// pollInterval is short compared with the waits of tests: a container takes some tens of milliseconds to start.
const pollInterval = 5 * time.Millisecond

// patience bounds every wait of the tests. It is long for slow machines. A test that passes never waits that long.
var patience = Slow(time.Minute)

// Slowness is how many times slower than usual the machine is. SHIM_TEST_SLOWNESS sets it for an emulated one.
func Slowness() int {
	n, err := strconv.Atoi(os.Getenv("SHIM_TEST_SLOWNESS"))
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// Slow returns how long this machine may take for what a usual machine does within d.
func Slow(d time.Duration) time.Duration { return d * time.Duration(Slowness()) }

// Fewer returns how many of n repetitions this machine does.
func Fewer(n int) int { return max(n/Slowness(), 1) }

// Eventually polls until cond returns nil. If that takes longer than the patience of the tests, the test ends with
// what was waited for and cond's last error.
func Eventually(tb testing.TB, what string, cond func() error) {
	tb.Helper()
	if err := poll(patience, cond); err != nil {
		tb.Fatalf("%s: not within %v: %v", what, patience, err)
	}
}

// Poll is Eventually outside of a test: it returns cond's last error.
func Poll(cond func() error) error { return poll(patience, cond) }

// PollFor is Poll with a limit of the caller's.
func PollFor(limit time.Duration, cond func() error) error { return poll(limit, cond) }

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

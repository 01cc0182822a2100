// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCPUTime_IsThatOfAllThreads(t *testing.T) {
	const burn = 50 * time.Millisecond
	cpu := func() time.Duration {
		t.Helper()
		d, err := cpuTime(os.Getpid())
		if err != nil {
			t.Error(err)
		}
		return d
	}
	before, begin := cpu(), time.Now()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for cpu() < before+burn {
				if time.Since(begin) > time.Minute {
					t.Error("the CPU time of a process that computes does not grow")
					return
				}
			}
		})
	}
	wg.Wait()
	if _, err := cpuTime(-1); err == nil {
		t.Error("CPU time of a process that does not exist: want an error")
	}
}

func TestSwitches_CountEachTimeAThreadSleeps(t *testing.T) {
	count := func() switchCount {
		t.Helper()
		c, err := switches(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const sleeps = 20
	before := count()
	for range sleeps {
		if err := unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := count().since(before); n < sleeps {
		t.Errorf("a thread slept %d times, counted %d", sleeps, n)
	}
	if _, err := switches(-1); err == nil {
		t.Error("switches of a process that does not exist: want an error")
	}
}

func TestSwitches_OfANewThreadAreAllNew(t *testing.T) {
	before := switchCount{"1": 10, "gone": 5}
	if n := (switchCount{"1": 12, "new": 7}).since(before); n != 9 {
		t.Errorf("since = %d, want 9", n)
	}
}

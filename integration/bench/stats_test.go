// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"sync"
	"testing"
	"time"
)

func TestCPUTimeIsThatOfAllThreads(t *testing.T) {
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

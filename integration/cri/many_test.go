// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// manyPods is how many pods the test of many runs. SHIM_TEST_PODS says otherwise, for emulated machines.
func manyPods() int {
	if n, err := strconv.Atoi(os.Getenv("SHIM_TEST_PODS")); err == nil {
		return max(n, 1)
	}
	return 100
}

func TestPod_HundredOfTwoContainersLeaveNothing(t *testing.T) {
	eachWay(t, func(e *env) {
		const parallel = 4 // two for each core that CI has
		began := time.Now()
		work := make(chan int)
		var workers sync.WaitGroup
		pods := make([]*cri.Pod, manyPods())
		errs := make([]error, len(pods))
		each := func(do func(i int) error) {
			for range parallel {
				workers.Go(func() {
					for i := range work {
						errs[i] = errors.Join(errs[i], do(i))
					}
				})
			}
			for i := range pods {
				work <- i
			}
			close(work)
			workers.Wait()
			work = make(chan int)
			e.must(errors.Join(errs...), "pods")
		}
		each(func(i int) error {
			var err error
			if pods[i], err = e.daemon.RunPod(e.ctx, e.handler, e.podConfig(fmt.Sprintf("p%d", i))); err != nil {
				return err
			}
			for _, name := range []string{"a", "b"} {
				if _, err := pods[i].Run(e.ctx, cri.ContainerConfig(name, "sleep", "1000")); err != nil {
					return err
				}
			}
			return nil
		})
		running := time.Since(began)
		if shims := harness.ShimsOf(e.daemon.Address, ""); len(shims) != len(pods) {
			e.Errorf("%d shims for %d pods", len(shims), len(pods))
		}
		each(func(i int) error { return pods[i].Remove(e.ctx) })
		e.Logf("%d pods: started in %v, removed in %v", len(pods), running.Round(time.Millisecond),
			(time.Since(began) - running).Round(time.Millisecond))
	})
}

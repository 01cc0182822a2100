// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

func idle(text string) change {
	return func(c *runtimeapi.ContainerConfig) {
		c.Annotations = map[string]string{"io.containerd.sandbox.v1/idle": text}
	}
}

// asleep reports whether a container is frozen.
func (c *container) asleep() bool {
	text, err := harness.CgroupFile(c.pod.e.cgroup+"/"+c.id, "freezer.state", "cgroup.freeze")
	c.pod.e.must(err, "freezer")
	return text == "FROZEN" || text == "1"
}

// The containers of a pod sleep and wake together, and nobody else learns of that.
func TestSleep_ContainersOfAPodTogether(t *testing.T) {
	eachWay(t, func(e *env) {
		harness.OursOnly(e, "containers that sleep")
		p := e.pod("p")
		a, b := p.run("a", forever, idle("after=1s,pod")), p.run("b", forever, idle("after=1s,pod"))
		wantAsleep := func() {
			e.Helper()
			harness.Eventually(e, "both sleep", func() error {
				if !a.asleep() || !b.asleep() {
					return errors.New("one is awake")
				}
				return nil
			})
		}
		wantAsleep()
		if s := e.stats(p); s == nil || a.status().State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			e.Errorf("statistics %v, state %v", s, a.status().State)
		}
		for range 3 { // as probes do
			a.wantExec("lives", "echo", "lives")
			wantAsleep()
		}
		lone := e.pod("lone")
		c := lone.create("c", forever, idle("after=1s"))
		_, err := e.daemon.Runtime.StartContainer(e.ctx, &runtimeapi.StartContainerRequest{ContainerId: c.id})
		if err == nil || !strings.Contains(err.Error(), "shares its ipc namespace") {
			e.Errorf("a container that shares the namespaces of its pod, without the item pod: %v", err)
		}
		b.stop(10)
		b.wantExit(0)
		wantOne := func() error {
			if !a.asleep() {
				return errors.New("it is awake")
			}
			return nil
		}
		harness.Eventually(e, "the other one sleeps", wantOne)
		a.stop(10)
	})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

func TestPod_InitContainersRunFirst(t *testing.T) {
	eachWay(t, func(e *env) {
		volume := mounted(e.volume(), "/volume")
		p := e.pod("p")
		for i := range 3 {
			p.run(fmt.Sprintf("init%d", i), []string{"sh", "-c", fmt.Sprintf("echo %d >>/volume/order", i)},
				volume).wantExit(0)
		}
		c := p.run("c", forever, volume)
		c.wantExec("0\n1\n2", "cat", "/volume/order")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		p.remove()
	})
}

func TestContainer_IsMadeAnewAfterEachExit(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		neighbour := p.run("neighbour", forever)
		before := neighbour.usage()
		const attempts = 12
		for i := range uint32(attempts) {
			c := p.run("crashes", []string{"sh", "-c", fmt.Sprintf("echo attempt %d; exit %d", i, i)},
				func(c *runtimeapi.ContainerConfig) {
					c.Metadata.Attempt, c.LogPath = i, fmt.Sprintf("crashes/%d.log", i)
				})
			c.wantExit(int32(i)) //nolint:gosec // a few
			c.wantLog(fmt.Sprintf("attempt %d\n", i))
			if i > 0 { // a kubelet keeps the last one, for its log
				e.must(p.removeNamed("crashes", i-1), "remove the attempt before")
			}
		}
		neighbour.wantExec("well", "echo", "well")
		e.must(p.removeNamed("crashes", attempts-1), "remove the last attempt")
		harness.CheckUsage(e, e.shim(p), before, 8)
		p.remove()
	})
}

// removeNamed removes an attempt of a container.
func (p *pod) removeNamed(name string, attempt uint32) error {
	list, err := p.e.daemon.Runtime.ListContainers(p.e.ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: p.ID}})
	for _, c := range list.GetContainers() {
		if c.GetMetadata().GetName() == name && c.GetMetadata().GetAttempt() == attempt {
			_, err := p.e.daemon.Runtime.RemoveContainer(p.e.ctx,
				&runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()})
			return err
		}
	}
	return fmt.Errorf("no container %s, attempt %d: %w", name, attempt, err)
}

func TestStop_OfAPodWhoseContainersDoNotEnd(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		deaf := p.run("deaf", []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"})
		deaf.wantLog("ready\n")
		began := time.Now()
		deaf.stop(1)
		deaf.wantExit(137)
		if took := time.Since(began); took < time.Second {
			e.Errorf("killed after %v, want a second of grace", took)
		}
		p.run("left", []string{"sh", "-c", "trap '' TERM; while :; do sleep 1000; done"})
		p.create("unstarted", forever)
		e.must(p.Stop(e.ctx), "stop") // kills what is left
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		e.must(p.Stop(e.ctx), "stop again")
		if left := harness.InCgroup(e.cgroup); len(left) > 0 {
			e.Errorf("after the pod was stopped there are %v", left)
		}
		if _, err := p.tryCreate("late", forever); err == nil {
			e.Error("a container was created in a stopped pod")
		}
		p.remove()
		p.remove() // as a kubelet may that did not hear of it
	})
}

func TestStop_SignalOfTheContainersOwn(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", []string{"sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 1000 & wait $!; done"},
			func(c *runtimeapi.ContainerConfig) {
				c.StopSignal = runtimeapi.Signal_SIGNAL_SIGUSR1
			})
		c.wantLog("ready\n")
		c.stop(20)
		c.wantExit(7)
		p.remove()
	})
}

func TestUpdate_ResourcesOfAPod(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		_, err := e.daemon.Runtime.UpdatePodSandboxResources(e.ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: p.ID, Overhead: &runtimeapi.LinuxContainerResources{},
			Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 256 << 20},
		})
		e.must(err, "update the pod")
		c.wantExec("well", "echo", "well")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		p.remove()
	})
}

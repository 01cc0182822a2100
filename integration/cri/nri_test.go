// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// plugin adjusts every container and records the events that it gets. Its methods are those that package stub looks
// for.
type plugin struct {
	mu   sync.Mutex
	told []string // guarded by mu
	pids []uint32 // guarded by mu, of the pods

	stub stub.Stub
}

func (p *plugin) tell(event string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, event)
}

func (p *plugin) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.told, " | ")
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.tell("run " + pod.GetName())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pids = append(p.pids, pod.GetPid())
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.tell("stop " + pod.GetName())
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.tell("remove " + pod.GetName())
	return nil
}

const nriShares = 333

func (p *plugin) CreateContainer(
	_ context.Context, _ *api.PodSandbox, c *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.tell("create " + c.GetName())
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("ADJUSTED", "by NRI")
	adjust.SetLinuxCPUShares(nriShares)
	return adjust, nil, nil
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.tell("start " + c.GetName())
	return nil
}

func (p *plugin) UpdateContainer(
	_ context.Context, _ *api.PodSandbox, c *api.Container, _ *api.LinuxResources,
) ([]*api.ContainerUpdate, error) {
	p.tell("update " + c.GetName())
	return nil, nil
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.tell("stop " + c.GetName())
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.tell("remove " + c.GetName())
	return nil
}

// plug connects a plugin, which leaves when the test ends.
func (e *env) plug() *plugin {
	e.Helper()
	p := &plugin{}
	var err error
	p.stub, err = stub.New(p, stub.WithPluginName("test"), stub.WithPluginIdx("10"),
		stub.WithSocketPath(cri.NRISocket(e.daemon.Containerd)))
	e.must(err, "make the plugin")
	e.must(p.stub.Start(e.ctx), "connect the plugin")
	e.Cleanup(func() { p.stub.Stop(); p.stub.Wait() })
	return p
}

func TestNRIPlugin_SeesAndAdjusts(t *testing.T) {
	eachWay(t, func(e *env) {
		nri := e.plug()
		p := e.pod("p")
		c := p.run("c", forever)
		c.wantExec("by NRI", "sh", "-c", "echo $ADJUSTED")
		if unified() {
			if c.cgroupFile("", "cpu.weight") == "100" {
				e.Error("CPU weight is the default, want what the plugin asked for")
			}
		} else if got := c.cgroupFile("cpu.shares", ""); got != fmt.Sprint(nriShares) {
			e.Errorf("CPU shares = %s, want %d", got, nriShares)
		}
		_, err := e.daemon.Runtime.UpdateContainerResources(e.ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
		})
		e.must(err, "update")
		nri.push(e, c)
		c.end()
		c.remove()
		p.remove()
		const want = "run p | create c | start c | update c | stop c | remove c | stop p | remove p"
		harness.Eventually(e, "all that the plugin is told", func() error {
			if got := nri.text(); got != want {
				return fmt.Errorf("it was told %q, want %q", got, want)
			}
			return nil
		})
		if pid := nri.pids[0]; pid == 0 {
			e.Error("the plugin was told no pid of the pod")
		}
	})
}

func (p *plugin) push(e *env, c *container) {
	e.Helper()
	u := &api.ContainerUpdate{}
	u.SetContainerId(c.id)
	const limit = 96 << 20
	u.SetLinuxMemoryLimit(limit)
	failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{u})
	if err != nil || len(failed) > 0 {
		e.Fatalf("update by the plugin: %v %v", failed, err)
	}
	if got := c.cgroupFile("memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(limit) {
		e.Errorf("memory limit = %s, want %d", got, limit)
	}
}

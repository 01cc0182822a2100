// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// Pod is one that runs, or ran.
type Pod struct {
	ID     string
	Config *runtimeapi.PodSandboxConfig

	d *Daemon
}

// PodConfig is the least that a kubelet says of a pod: a name, a cgroup parent, and namespaces as they are by default.
func PodConfig(name, cgroupParent string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
		Hostname: name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: cgroupParent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// ContainerConfig is the least that a kubelet says of a container in a pod of PodConfig.
func ContainerConfig(name string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: harness.Image},
		Command:  command,
		LogPath:  name + ".log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// RunPod runs a pod without containers.
func (d *Daemon) RunPod(ctx context.Context, handler string, config *runtimeapi.PodSandboxConfig) (*Pod, error) {
	r, err := d.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return nil, fmt.Errorf("run pod %q: %w", config.GetMetadata().GetName(), err)
	}
	return &Pod{ID: r.GetPodSandboxId(), Config: config, d: d}, nil
}

// Create creates a container in the pod and returns its id.
func (p *Pod) Create(ctx context.Context, config *runtimeapi.ContainerConfig) (string, error) {
	r, err := p.d.Runtime.CreateContainer(ctx,
		&runtimeapi.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
	if err != nil {
		return "", fmt.Errorf("create container %q: %w", config.GetMetadata().GetName(), err)
	}
	return r.GetContainerId(), nil
}

// Run creates and starts a container in the pod and returns its id.
func (p *Pod) Run(ctx context.Context, config *runtimeapi.ContainerConfig) (string, error) {
	id, err := p.Create(ctx, config)
	if err != nil {
		return "", err
	}
	if _, err := p.d.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return "", fmt.Errorf("start container %q: %w", config.GetMetadata().GetName(), err)
	}
	return id, nil
}

// Stop stops the pod and all in it.
func (p *Pod) Stop(ctx context.Context) error {
	if _, err := p.d.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return fmt.Errorf("stop pod %q: %w", p.Config.GetMetadata().GetName(), err)
	}
	return nil
}

// Remove stops and removes the pod and all in it, as far as it is still there.
func (p *Pod) Remove(ctx context.Context) error {
	err := p.Stop(ctx)
	if _, e := p.d.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.ID}); e != nil {
		err = errors.Join(err, fmt.Errorf("remove pod %q: %w", p.Config.GetMetadata().GetName(), e))
	}
	return err
}

// RemovePods stops and removes all pods of the daemon.
func (d *Daemon) RemovePods(ctx context.Context) error {
	list, err := d.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	for _, item := range list.GetItems() {
		p := &Pod{ID: item.GetId(), Config: &runtimeapi.PodSandboxConfig{Metadata: item.GetMetadata()}, d: d}
		err = errors.Join(err, p.Remove(ctx))
	}
	return err
}

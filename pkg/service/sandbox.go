// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/podsandbox"
)

// pods is containerd.runtime.sandbox.v1.Sandbox. Its methods are in the order of the proto.
type pods struct {
	controller *podsandbox.Controller
}

func registerPods(server *ttrpc.Server, c *podsandbox.Controller) {
	p := &pods{controller: c}
	server.RegisterService("containerd.runtime.sandbox.v1.Sandbox", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"CreateSandbox":   method(p.Create),
		"StartSandbox":    method(p.Start),
		"Platform":        method(p.Platform),
		"StopSandbox":     method(p.Stop),
		"WaitSandbox":     method(p.Wait),
		"SandboxStatus":   method(p.Status),
		"PingSandbox":     method(p.Ping),
		"ShutdownSandbox": method(p.Shutdown),
		"SandboxMetrics":  method(p.Metrics),
		"UpdateSandbox":   method(p.Update),
	}})
}

func (p *pods) Create(ctx context.Context, r *api.CreateSandboxRequest) (*api.CreateSandboxResponse, error) {
	config, err := podConfig(r.Options)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", r.SandboxID, err)
	}
	if len(r.Rootfs) > 0 {
		return nil, fmt.Errorf("sandbox %q: rootfs %s: a sandbox of this shim runs no program, so it must have none: %w",
			r.SandboxID, r.Rootfs[0].Source, errdefs.ErrInvalidArgument)
	}
	return &api.CreateSandboxResponse{}, p.controller.Create(ctx, podsandbox.CreateRequest{
		ID: r.SandboxID, Bundle: r.BundlePath, NetNS: r.NetnsPath, Config: config, Annotations: r.Annotations,
	})
}

func (p *pods) Start(ctx context.Context, r *api.StartSandboxRequest) (*api.StartSandboxResponse, error) {
	started, err := p.controller.Start(ctx, r.SandboxID)
	if err != nil {
		return nil, err
	}
	spec, err := packSpec(started.Spec)
	if err != nil {
		return nil, err
	}
	return &api.StartSandboxResponse{Pid: uint32(started.Pid), CreatedAt: timestamp(started.CreatedAt), Spec: spec}, nil
}

// Platform is what containers are made for: that of this program.
func (p *pods) Platform(_ context.Context, r *api.PlatformRequest) (*api.PlatformResponse, error) {
	if err := p.controller.Ping(r.SandboxID); err != nil {
		return nil, err
	}
	return &api.PlatformResponse{Platform: &api.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}}, nil
}

func (p *pods) Stop(ctx context.Context, r *api.StopSandboxRequest) (*api.StopSandboxResponse, error) {
	return &api.StopSandboxResponse{}, p.controller.Stop(ctx, r.SandboxID, time.Duration(r.TimeoutSecs)*time.Second)
}

func (p *pods) Wait(ctx context.Context, r *api.WaitSandboxRequest) (*api.WaitSandboxResponse, error) {
	exit, err := p.controller.Wait(ctx, r.SandboxID)
	if err != nil {
		return nil, err
	}
	return &api.WaitSandboxResponse{ExitStatus: uint32(exit.Status), ExitedAt: timestamp(exit.At)}, nil
}

func (p *pods) Status(_ context.Context, r *api.SandboxStatusRequest) (*api.SandboxStatusResponse, error) {
	status, err := p.controller.Status(r.SandboxID, r.Verbose)
	if err != nil {
		return nil, err
	}
	answer := &api.SandboxStatusResponse{
		SandboxID: status.ID, Pid: uint32(status.Pid), State: podState(status.Stage),
		CreatedAt: timestamp(status.CreatedAt), ExitedAt: timestamp(status.Exit.At),
	}
	if r.Verbose {
		answer.Info, err = podInfo(status)
	}
	return answer, err
}

func (p *pods) Ping(_ context.Context, r *api.PingRequest) (*api.PingResponse, error) {
	return &api.PingResponse{}, p.controller.Ping(r.SandboxID)
}

func (p *pods) Shutdown(ctx context.Context, r *api.ShutdownSandboxRequest) (*api.ShutdownSandboxResponse, error) {
	return &api.ShutdownSandboxResponse{}, p.controller.Shutdown(ctx, r.SandboxID)
}

func (p *pods) Metrics(_ context.Context, r *api.SandboxMetricsRequest) (*api.SandboxMetricsResponse, error) {
	metrics, err := p.controller.Metrics(r.SandboxID)
	if err != nil {
		return nil, err
	}
	packed, err := pack(string(metrics.ProtoReflect().Descriptor().FullName()), metrics)
	if err != nil {
		return nil, err
	}
	return &api.SandboxMetricsResponse{Metrics: &api.Metric{Timestamp: timestamppb.Now(), ID: r.SandboxID, Data: packed}}, nil
}

// Update is told by CRI that the sums of the pod's resources changed (internal/cri/server, UpdatePodSandboxResources),
// after which the kubelet, whose the pod's cgroup is, writes to that itself.
func (p *pods) Update(_ context.Context, r *api.UpdateSandboxRequest) (*api.UpdateSandboxResponse, error) {
	told, err := podResources(r.Sandbox)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", r.SandboxID, err)
	}
	return &api.UpdateSandboxResponse{}, p.controller.Update(r.SandboxID, told)
}

// podResources reads what CRI's UpdatePodSandboxResources keeps in containerd's record of a sandbox. It is nil where that
// is not the matter of the update.
//
// What it cannot read is not implemented, which CRI tolerates.
func podResources(s *api.Sandbox) (*podsandbox.Resources, error) {
	const key = "updated-resources" // internal/cri/server/podsandbox, UpdatedResourcesKey
	if s == nil || s.Extensions[key] == nil {
		return nil, nil
	}
	var r podsandbox.Resources
	if err := json.Unmarshal(s.Extensions[key].GetValue(), &r); err != nil {
		return nil, fmt.Errorf("update: extension %q: %w: %w", key, err, errdefs.ErrNotImplemented)
	}
	return &r, nil
}

// podConfigName is that of CRI's message.
const podConfigName = "runtime.v1.PodSandboxConfig"

// podConfig reads the options of a CreateSandbox. It is nil when there are none: the configuration is the bundle's
// then.
func podConfig(options *anypb.Any) (*pod.Config, error) {
	url := options.GetTypeUrl()
	if url == "" && len(options.GetValue()) == 0 {
		return nil, nil
	}
	if url[strings.LastIndexByte(url, '/')+1:] != podConfigName {
		return nil, fmt.Errorf("options: type %q: want %s, or none and a config.json in the bundle: %w", url, podConfigName, errdefs.ErrInvalidArgument)
	}
	config, err := pod.DecodeConfig(options.GetValue())
	if err != nil {
		return nil, fmt.Errorf("options: %w", err)
	}
	return &config, nil
}

// packSpec makes an Any as containerd's typeurl does of an OCI configuration.
func packSpec(spec *specs.Spec) (*anypb.Any, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the pod's configuration: %w", err)
	}
	return &anypb.Any{TypeUrl: specURL + "1/Spec", Value: data}, nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The messages of containerd.runtime.sandbox.v1.Sandbox.

type CreateSandboxRequest struct {
	SandboxID   string            `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	BundlePath  string            `protobuf:"bytes,2,opt,name=bundle_path,proto3"`
	Rootfs      []*Mount          `protobuf:"bytes,3,rep,name=rootfs,proto3"`
	Options     *anypb.Any        `protobuf:"bytes,4,opt,name=options,proto3"`
	NetnsPath   string            `protobuf:"bytes,5,opt,name=netns_path,proto3"`
	Annotations map[string]string `protobuf:"bytes,6,rep,name=annotations,proto3"`
}

type CreateSandboxResponse struct{}

type StartSandboxRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type StartSandboxResponse struct {
	Pid       uint32                 `protobuf:"varint,1,opt,name=pid,proto3"`
	CreatedAt *timestamppb.Timestamp `protobuf:"bytes,2,opt,name=created_at,proto3"`
	Spec      *anypb.Any             `protobuf:"bytes,3,opt,name=spec,proto3"`
}

type PlatformRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type PlatformResponse struct {
	Platform *Platform `protobuf:"bytes,1,opt,name=platform,proto3"`
}

type StopSandboxRequest struct {
	SandboxID   string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	TimeoutSecs uint32 `protobuf:"varint,2,opt,name=timeout_secs,proto3"`
}

type StopSandboxResponse struct{}

type UpdateSandboxRequest struct {
	SandboxID   string            `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	Resources   *anypb.Any        `protobuf:"bytes,2,opt,name=resources,proto3"`
	Annotations map[string]string `protobuf:"bytes,3,rep,name=annotations,proto3"`
	Sandbox     *Sandbox          `protobuf:"bytes,4,opt,name=sandbox,proto3"`
	Fields      []string          `protobuf:"bytes,5,rep,name=fields,proto3"`
}

type UpdateSandboxResponse struct{}

type WaitSandboxRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type WaitSandboxResponse struct {
	ExitStatus uint32                 `protobuf:"varint,1,opt,name=exit_status,proto3"`
	ExitedAt   *timestamppb.Timestamp `protobuf:"bytes,2,opt,name=exited_at,proto3"`
}

type SandboxStatusRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	Verbose   bool   `protobuf:"varint,2,opt,name=verbose,proto3"`
}

type SandboxStatusResponse struct {
	SandboxID string                 `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	Pid       uint32                 `protobuf:"varint,2,opt,name=pid,proto3"`
	State     string                 `protobuf:"bytes,3,opt,name=state,proto3"`
	Info      map[string]string      `protobuf:"bytes,4,rep,name=info,proto3"`
	CreatedAt *timestamppb.Timestamp `protobuf:"bytes,5,opt,name=created_at,proto3"`
	ExitedAt  *timestamppb.Timestamp `protobuf:"bytes,6,opt,name=exited_at,proto3"`
	Extra     *anypb.Any             `protobuf:"bytes,7,opt,name=extra,proto3"`
}

type PingRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type PingResponse struct{}

type ShutdownSandboxRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type ShutdownSandboxResponse struct{}

type SandboxMetricsRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type SandboxMetricsResponse struct {
	Metrics *Metric `protobuf:"bytes,1,opt,name=metrics,proto3"`
}

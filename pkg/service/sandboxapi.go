// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The messages of the ttrpc service containerd.runtime.sandbox.v1.Sandbox are those of containerd's api/runtime/sandbox/v1 of version
// 1.12, with the same names and tags. containerd's own package links gRPC. updateSandboxRequest has no sandbox: a shim has no use for
// containerd's record of it.

type createSandboxRequest struct {
	SandboxID   string            `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	BundlePath  string            `protobuf:"bytes,2,opt,name=bundle_path,proto3"`
	Rootfs      []*types.Mount    `protobuf:"bytes,3,rep,name=rootfs,proto3"`
	Options     *anypb.Any        `protobuf:"bytes,4,opt,name=options,proto3"`
	NetnsPath   string            `protobuf:"bytes,5,opt,name=netns_path,proto3"`
	Annotations map[string]string `protobuf:"bytes,6,rep,name=annotations,proto3"`
}

type createSandboxResponse struct{}

type startSandboxRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type startSandboxResponse struct {
	Pid       uint32                 `protobuf:"varint,1,opt,name=pid,proto3"`
	CreatedAt *timestamppb.Timestamp `protobuf:"bytes,2,opt,name=created_at,proto3"`
	Spec      *anypb.Any             `protobuf:"bytes,3,opt,name=spec,proto3"`
}

type platformRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type platformResponse struct {
	Platform *types.Platform `protobuf:"bytes,1,opt,name=platform,proto3"`
}

type stopSandboxRequest struct {
	SandboxID   string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	TimeoutSecs uint32 `protobuf:"varint,2,opt,name=timeout_secs,proto3"`
}

type stopSandboxResponse struct{}

type updateSandboxRequest struct {
	SandboxID   string            `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	Resources   *anypb.Any        `protobuf:"bytes,2,opt,name=resources,proto3"`
	Annotations map[string]string `protobuf:"bytes,3,rep,name=annotations,proto3"`
	Fields      []string          `protobuf:"bytes,5,rep,name=fields,proto3"`
}

type updateSandboxResponse struct{}

type waitSandboxRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type waitSandboxResponse struct {
	ExitStatus uint32                 `protobuf:"varint,1,opt,name=exit_status,proto3"`
	ExitedAt   *timestamppb.Timestamp `protobuf:"bytes,2,opt,name=exited_at,proto3"`
}

type sandboxStatusRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	Verbose   bool   `protobuf:"varint,2,opt,name=verbose,proto3"`
}

type sandboxStatusResponse struct {
	SandboxID string                 `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
	Pid       uint32                 `protobuf:"varint,2,opt,name=pid,proto3"`
	State     string                 `protobuf:"bytes,3,opt,name=state,proto3"`
	Info      map[string]string      `protobuf:"bytes,4,rep,name=info,proto3"`
	CreatedAt *timestamppb.Timestamp `protobuf:"bytes,5,opt,name=created_at,proto3"`
	ExitedAt  *timestamppb.Timestamp `protobuf:"bytes,6,opt,name=exited_at,proto3"`
	Extra     *anypb.Any             `protobuf:"bytes,7,opt,name=extra,proto3"`
}

type pingRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type pingResponse struct{}

type shutdownSandboxRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type shutdownSandboxResponse struct{}

type sandboxMetricsRequest struct {
	SandboxID string `protobuf:"bytes,1,opt,name=sandbox_id,proto3"`
}

type sandboxMetricsResponse struct {
	Metrics *types.Metric `protobuf:"bytes,1,opt,name=metrics,proto3"`
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The messages of containerd.task.v2.Task, and of containerd.task.v3.Task, whose messages are the same. What has no answer answers Empty.

// Empty is google.protobuf.Empty.
type Empty struct{}

type StateRequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
}

type StateResponse struct {
	ID         string                 `protobuf:"bytes,1,opt,name=id,proto3"`
	Bundle     string                 `protobuf:"bytes,2,opt,name=bundle,proto3"`
	Pid        uint32                 `protobuf:"varint,3,opt,name=pid,proto3"`
	Status     Status                 `protobuf:"varint,4,opt,name=status,proto3"`
	Stdin      string                 `protobuf:"bytes,5,opt,name=stdin,proto3"`
	Stdout     string                 `protobuf:"bytes,6,opt,name=stdout,proto3"`
	Stderr     string                 `protobuf:"bytes,7,opt,name=stderr,proto3"`
	Terminal   bool                   `protobuf:"varint,8,opt,name=terminal,proto3"`
	ExitStatus uint32                 `protobuf:"varint,9,opt,name=exit_status,proto3"`
	ExitedAt   *timestamppb.Timestamp `protobuf:"bytes,10,opt,name=exited_at,proto3"`
	ExecID     string                 `protobuf:"bytes,11,opt,name=exec_id,proto3"`
}

type CreateTaskRequest struct {
	ID               string     `protobuf:"bytes,1,opt,name=id,proto3"`
	Bundle           string     `protobuf:"bytes,2,opt,name=bundle,proto3"`
	Rootfs           []*Mount   `protobuf:"bytes,3,rep,name=rootfs,proto3"`
	Terminal         bool       `protobuf:"varint,4,opt,name=terminal,proto3"`
	Stdin            string     `protobuf:"bytes,5,opt,name=stdin,proto3"`
	Stdout           string     `protobuf:"bytes,6,opt,name=stdout,proto3"`
	Stderr           string     `protobuf:"bytes,7,opt,name=stderr,proto3"`
	Checkpoint       string     `protobuf:"bytes,8,opt,name=checkpoint,proto3"`
	ParentCheckpoint string     `protobuf:"bytes,9,opt,name=parent_checkpoint,proto3"`
	Options          *anypb.Any `protobuf:"bytes,10,opt,name=options,proto3"`
}

type CreateTaskResponse struct {
	Pid uint32 `protobuf:"varint,1,opt,name=pid,proto3"`
}

type StartRequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
}

type StartResponse struct {
	Pid uint32 `protobuf:"varint,1,opt,name=pid,proto3"`
}

type DeleteRequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
}

type DeleteResponse struct {
	Pid        uint32                 `protobuf:"varint,1,opt,name=pid,proto3"`
	ExitStatus uint32                 `protobuf:"varint,2,opt,name=exit_status,proto3"`
	ExitedAt   *timestamppb.Timestamp `protobuf:"bytes,3,opt,name=exited_at,proto3"`
}

type PidsRequest struct {
	ID string `protobuf:"bytes,1,opt,name=id,proto3"`
}

type PidsResponse struct {
	Processes []*ProcessInfo `protobuf:"bytes,1,rep,name=processes,proto3"`
}

type PauseRequest struct {
	ID string `protobuf:"bytes,1,opt,name=id,proto3"`
}

type ResumeRequest struct {
	ID string `protobuf:"bytes,1,opt,name=id,proto3"`
}

type CheckpointTaskRequest struct {
	ID      string     `protobuf:"bytes,1,opt,name=id,proto3"`
	Path    string     `protobuf:"bytes,2,opt,name=path,proto3"`
	Options *anypb.Any `protobuf:"bytes,3,opt,name=options,proto3"`
}

type KillRequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
	Signal uint32 `protobuf:"varint,3,opt,name=signal,proto3"`
	All    bool   `protobuf:"varint,4,opt,name=all,proto3"`
}

type ExecProcessRequest struct {
	ID       string     `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID   string     `protobuf:"bytes,2,opt,name=exec_id,proto3"`
	Terminal bool       `protobuf:"varint,3,opt,name=terminal,proto3"`
	Stdin    string     `protobuf:"bytes,4,opt,name=stdin,proto3"`
	Stdout   string     `protobuf:"bytes,5,opt,name=stdout,proto3"`
	Stderr   string     `protobuf:"bytes,6,opt,name=stderr,proto3"`
	Spec     *anypb.Any `protobuf:"bytes,7,opt,name=spec,proto3"`
}

type ResizePtyRequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
	Width  uint32 `protobuf:"varint,3,opt,name=width,proto3"`
	Height uint32 `protobuf:"varint,4,opt,name=height,proto3"`
}

type CloseIORequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
	Stdin  bool   `protobuf:"varint,3,opt,name=stdin,proto3"`
}

type UpdateTaskRequest struct {
	ID          string            `protobuf:"bytes,1,opt,name=id,proto3"`
	Resources   *anypb.Any        `protobuf:"bytes,2,opt,name=resources,proto3"`
	Annotations map[string]string `protobuf:"bytes,3,rep,name=annotations,proto3"`
}

type WaitRequest struct {
	ID     string `protobuf:"bytes,1,opt,name=id,proto3"`
	ExecID string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
}

type WaitResponse struct {
	ExitStatus uint32                 `protobuf:"varint,1,opt,name=exit_status,proto3"`
	ExitedAt   *timestamppb.Timestamp `protobuf:"bytes,2,opt,name=exited_at,proto3"`
}

type StatsRequest struct {
	ID string `protobuf:"bytes,1,opt,name=id,proto3"`
}

type StatsResponse struct {
	Stats *anypb.Any `protobuf:"bytes,1,opt,name=stats,proto3"`
}

type ConnectRequest struct {
	ID string `protobuf:"bytes,1,opt,name=id,proto3"`
}

type ConnectResponse struct {
	ShimPid uint32 `protobuf:"varint,1,opt,name=shim_pid,proto3"`
	TaskPid uint32 `protobuf:"varint,2,opt,name=task_pid,proto3"`
	Version string `protobuf:"bytes,3,opt,name=version,proto3"`
}

type ShutdownRequest struct {
	ID  string `protobuf:"bytes,1,opt,name=id,proto3"`
	Now bool   `protobuf:"varint,2,opt,name=now,proto3"`
}

// Status is containerd.v1.types.Status.
type Status int32

const (
	StatusCreated Status = 1 + iota
	StatusRunning
	StatusStopped
	StatusPaused
	StatusPausing
)

// ProcessInfo is containerd.v1.types.ProcessInfo.
type ProcessInfo struct {
	Pid  uint32     `protobuf:"varint,1,opt,name=pid,proto3"`
	Info *anypb.Any `protobuf:"bytes,2,opt,name=info,proto3"`
}

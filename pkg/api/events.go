// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api

import "google.golang.org/protobuf/types/known/timestamppb"

// The messages of containerd.events that a shim sends.

type TaskCreate struct {
	ContainerID string   `protobuf:"bytes,1,opt,name=container_id,proto3"`
	Bundle      string   `protobuf:"bytes,2,opt,name=bundle,proto3"`
	Rootfs      []*Mount `protobuf:"bytes,3,rep,name=rootfs,proto3"`
	IO          *TaskIO  `protobuf:"bytes,4,opt,name=io,proto3"`
	Checkpoint  string   `protobuf:"bytes,5,opt,name=checkpoint,proto3"`
	Pid         uint32   `protobuf:"varint,6,opt,name=pid,proto3"`
}

type TaskIO struct {
	Stdin    string `protobuf:"bytes,1,opt,name=stdin,proto3"`
	Stdout   string `protobuf:"bytes,2,opt,name=stdout,proto3"`
	Stderr   string `protobuf:"bytes,3,opt,name=stderr,proto3"`
	Terminal bool   `protobuf:"varint,4,opt,name=terminal,proto3"`
}

type TaskStart struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
	Pid         uint32 `protobuf:"varint,2,opt,name=pid,proto3"`
}

type TaskOOM struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
}

type TaskExit struct {
	ContainerID string                 `protobuf:"bytes,1,opt,name=container_id,proto3"`
	ID          string                 `protobuf:"bytes,2,opt,name=id,proto3"`
	Pid         uint32                 `protobuf:"varint,3,opt,name=pid,proto3"`
	ExitStatus  uint32                 `protobuf:"varint,4,opt,name=exit_status,proto3"`
	ExitedAt    *timestamppb.Timestamp `protobuf:"bytes,5,opt,name=exited_at,proto3"`
}

type TaskDelete struct {
	ContainerID string                 `protobuf:"bytes,1,opt,name=container_id,proto3"`
	Pid         uint32                 `protobuf:"varint,2,opt,name=pid,proto3"`
	ExitStatus  uint32                 `protobuf:"varint,3,opt,name=exit_status,proto3"`
	ExitedAt    *timestamppb.Timestamp `protobuf:"bytes,4,opt,name=exited_at,proto3"`
	ID          string                 `protobuf:"bytes,5,opt,name=id,proto3"`
}

type TaskExecAdded struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
	ExecID      string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
}

type TaskExecStarted struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
	ExecID      string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
	Pid         uint32 `protobuf:"varint,3,opt,name=pid,proto3"`
}

type TaskPaused struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
}

type TaskResumed struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
}

type TaskCheckpointed struct {
	ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
	Checkpoint  string `protobuf:"bytes,2,opt,name=checkpoint,proto3"`
}

// ForwardRequest is that of the ttrpc service containerd.services.events.ttrpc.v1.Events.
type ForwardRequest struct {
	Envelope *Envelope `protobuf:"bytes,1,opt,name=envelope,proto3"`
}

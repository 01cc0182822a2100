// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api

import "google.golang.org/protobuf/types/known/anypb"

// The messages of containerd.runtime.bootstrap.v1, by which containerd 2.3 and later talk to `start`.

type BootstrapParams struct {
	InstanceID             string       `protobuf:"bytes,1,opt,name=instance_id,proto3"`
	Namespace              string       `protobuf:"bytes,2,opt,name=namespace,proto3"`
	LogLevel               LogLevel     `protobuf:"varint,3,opt,name=log_level,proto3"`
	ContainerdVersion      string       `protobuf:"bytes,4,opt,name=containerd_version,proto3"`
	ContainerdTtrpcAddress string       `protobuf:"bytes,5,opt,name=containerd_ttrpc_address,proto3"`
	ContainerdGrpcAddress  string       `protobuf:"bytes,6,opt,name=containerd_grpc_address,proto3"`
	Extensions             []*Extension `protobuf:"bytes,8,rep,name=extensions,proto3"`
	SocketDir              *string      `protobuf:"bytes,9,opt,name=socket_dir,proto3,oneof"`
}

// LogLevel has the numbers of log/slog: the higher, the less is said. Others than those with a name are possible.
type LogLevel int32

// LogLevelDebug is LOG_LEVEL_DEBUG.
const LogLevelDebug LogLevel = -4

type Extension struct {
	Value *anypb.Any `protobuf:"bytes,1,opt,name=value,proto3"`
}

type BootstrapResult struct {
	Version  int32  `protobuf:"varint,1,opt,name=version,proto3"`
	Address  string `protobuf:"bytes,2,opt,name=address,proto3"`
	Protocol string `protobuf:"bytes,3,opt,name=protocol,proto3"`
}

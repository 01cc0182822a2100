// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The messages of containerd.types.

type Mount struct {
	Type    string   `protobuf:"bytes,1,opt,name=type,proto3"`
	Source  string   `protobuf:"bytes,2,opt,name=source,proto3"`
	Target  string   `protobuf:"bytes,3,opt,name=target,proto3"`
	Options []string `protobuf:"bytes,4,rep,name=options,proto3"`
}

type Platform struct {
	OS           string   `protobuf:"bytes,1,opt,name=os,proto3"`
	Architecture string   `protobuf:"bytes,2,opt,name=architecture,proto3"`
	Variant      string   `protobuf:"bytes,3,opt,name=variant,proto3"`
	OSVersion    string   `protobuf:"bytes,4,opt,name=os_version,proto3"`
	OSFeatures   []string `protobuf:"bytes,5,rep,name=os_features,proto3"`
}

type Metric struct {
	Timestamp *timestamppb.Timestamp `protobuf:"bytes,1,opt,name=timestamp,proto3"`
	ID        string                 `protobuf:"bytes,2,opt,name=id,proto3"`
	Data      *anypb.Any             `protobuf:"bytes,3,opt,name=data,proto3"`
}

type Envelope struct {
	Timestamp *timestamppb.Timestamp `protobuf:"bytes,1,opt,name=timestamp,proto3"`
	Namespace string                 `protobuf:"bytes,2,opt,name=namespace,proto3"`
	Topic     string                 `protobuf:"bytes,3,opt,name=topic,proto3"`
	Event     *anypb.Any             `protobuf:"bytes,4,opt,name=event,proto3"`
}

type RuntimeInfo struct {
	Name        string            `protobuf:"bytes,1,opt,name=name,proto3"`
	Version     *RuntimeVersion   `protobuf:"bytes,2,opt,name=version,proto3"`
	Options     *anypb.Any        `protobuf:"bytes,3,opt,name=options,proto3"`
	Features    *anypb.Any        `protobuf:"bytes,4,opt,name=features,proto3"`
	Annotations map[string]string `protobuf:"bytes,5,rep,name=annotations,proto3"`
}

type RuntimeVersion struct {
	Version  string `protobuf:"bytes,1,opt,name=version,proto3"`
	Revision string `protobuf:"bytes,2,opt,name=revision,proto3"`
}

// Sandbox is containerd's record of one, of which a shim needs what CRI keeps there.
type Sandbox struct {
	Extensions map[string]*anypb.Any `protobuf:"bytes,7,rep,name=extensions,proto3"`
}

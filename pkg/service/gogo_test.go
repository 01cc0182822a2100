// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	gogo "github.com/gogo/protobuf/proto"
	gogotypes "github.com/gogo/protobuf/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/internal/testx"
)

// gogoMount and gogoCreate are messages as containerd up to 1.6 has them, for
// an encoder that is not ours. The numbers are those of api/runtime/task/shim.proto.
type gogoMount struct {
	Type    string   `protobuf:"bytes,1,opt,name=type,proto3"`
	Source  string   `protobuf:"bytes,2,opt,name=source,proto3"`
	Target  string   `protobuf:"bytes,3,opt,name=target,proto3"`
	Options []string `protobuf:"bytes,4,rep,name=options,proto3"`
}

type gogoCreate struct {
	ID               string         `protobuf:"bytes,1,opt,name=id,proto3"`
	Bundle           string         `protobuf:"bytes,2,opt,name=bundle,proto3"`
	Rootfs           []*gogoMount   `protobuf:"bytes,3,rep,name=rootfs,proto3"`
	Terminal         bool           `protobuf:"varint,4,opt,name=terminal,proto3"`
	Stdin            string         `protobuf:"bytes,5,opt,name=stdin,proto3"`
	Stdout           string         `protobuf:"bytes,6,opt,name=stdout,proto3"`
	Stderr           string         `protobuf:"bytes,7,opt,name=stderr,proto3"`
	Checkpoint       string         `protobuf:"bytes,8,opt,name=checkpoint,proto3"`
	ParentCheckpoint string         `protobuf:"bytes,9,opt,name=parent_checkpoint,proto3"`
	Options          *gogotypes.Any `protobuf:"bytes,10,opt,name=options,proto3"`
}

type gogoState struct {
	ID         string               `protobuf:"bytes,1,opt,name=id,proto3"`
	Bundle     string               `protobuf:"bytes,2,opt,name=bundle,proto3"`
	Pid        uint32               `protobuf:"varint,3,opt,name=pid,proto3"`
	Status     int32                `protobuf:"varint,4,opt,name=status,proto3"`
	Stdin      string               `protobuf:"bytes,5,opt,name=stdin,proto3"`
	Stdout     string               `protobuf:"bytes,6,opt,name=stdout,proto3"`
	Stderr     string               `protobuf:"bytes,7,opt,name=stderr,proto3"`
	Terminal   bool                 `protobuf:"varint,8,opt,name=terminal,proto3"`
	ExitStatus uint32               `protobuf:"varint,9,opt,name=exit_status,proto3"`
	ExitedAt   *gogotypes.Timestamp `protobuf:"bytes,10,opt,name=exited_at,proto3"`
	ExecID     string               `protobuf:"bytes,11,opt,name=exec_id,proto3"`
}

func (m *gogoMount) Reset()          { *m = gogoMount{} }
func (m *gogoMount) String() string  { return gogo.CompactTextString(m) }
func (*gogoMount) ProtoMessage()     {}
func (m *gogoCreate) Reset()         { *m = gogoCreate{} }
func (m *gogoCreate) String() string { return gogo.CompactTextString(m) }
func (*gogoCreate) ProtoMessage()    {}
func (m *gogoState) Reset()          { *m = gogoState{} }
func (m *gogoState) String() string  { return gogo.CompactTextString(m) }
func (*gogoState) ProtoMessage()     {}

func TestTask_ClientsThatEncodeWithGogo(t *testing.T) {
	data, err := gogo.Marshal(&gogoCreate{
		ID: "c", Bundle: "/b", Terminal: true, Stdin: "i", Stdout: "o", Stderr: "e", Checkpoint: "x",
		ParentCheckpoint: "y",
		Rootfs: []*gogoMount{
			{Type: "t", Source: "s", Target: "g", Options: []string{"o1", "o2"}}, {Type: "u"},
		},
		Options: &gogotypes.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{8, 1}},
	})
	testx.Must(t, err)
	got := &api.CreateTaskRequest{}
	testx.Must(t, proto.Unmarshal(data, got))
	want := &api.CreateTaskRequest{
		ID: "c", Bundle: "/b", Terminal: true, Stdin: "i", Stdout: "o", Stderr: "e", Checkpoint: "x",
		ParentCheckpoint: "y",
		Rootfs: []*types.Mount{
			{Type: "t", Source: "s", Target: "g", Options: []string{"o1", "o2"}}, {Type: "u"},
		},
		Options: &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{8, 1}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	answer, err := proto.Marshal(
		&api.StateResponse{
			ID: "c", Bundle: "/b", Pid: 7, Status: tasktypes.Status_STOPPED, Stdin: "i", Terminal: true,
			ExitStatus: 137, ExitedAt: &timestamppb.Timestamp{Seconds: 5, Nanos: 6},
		},
	)
	testx.Must(t, err)
	var back gogoState
	testx.Must(t, gogo.Unmarshal(answer, &back))
	state := gogoState{
		ID: "c", Bundle: "/b", Pid: 7, Status: 3, Stdin: "i", Terminal: true, ExitStatus: 137,
		ExitedAt: &gogotypes.Timestamp{Seconds: 5, Nanos: 6},
	}
	if !gogo.Equal(&back, &state) {
		t.Errorf("answer = %v, want %v", &back, &state)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi3 "github.com/containerd/containerd/api/runtime/task/v3"
	runc "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
)

func TestExec_RefusesSpec(t *testing.T) {
	const url = "types.containerd.io/opencontainers/runtime-spec/1/"
	for name, tc := range map[string]struct {
		in   *anypb.Any
		want []string
	}{
		"nothing":                     {nil, []string{"spec", `""`}},
		"another type":                {&anypb.Any{TypeUrl: url + "LinuxResources"}, []string{"spec", "1/LinuxResources", "/Process"}},
		"a name that only ends alike": {&anypb.Any{TypeUrl: url + "LinuxProcess"}, []string{"spec", "LinuxProcess"}},
		"a message":                   {&anypb.Any{TypeUrl: "type.googleapis.com/a.Process"}, []string{"spec", "a.Process"}},
		"text that is no JSON":        {&anypb.Any{TypeUrl: url + "Process", Value: []byte("{half")}, []string{"spec"}},
		"a field of another kind":     {&anypb.Any{TypeUrl: url + "Process", Value: []byte(`{"cwd": 3}`)}, []string{"spec", "cwd"}},
	} {
		t.Run(name, func(t *testing.T) {
			testx.WantInvalid(t, unpackSpec(tc.in, "spec", "Process", &specs.Process{}), tc.want...)
		})
	}
}

func TestExec_SpecPackedByContainerd(t *testing.T) {
	typeurl.Register(&specs.Process{}, "types.containerd.io", "opencontainers/runtime-spec", "1", "Process")
	packed, err := typeurl.MarshalAnyToProto(goodProcess())
	testx.Must(t, err)
	if err := unpackSpec(packed, "spec", "Process", &specs.Process{}); err != nil {
		t.Errorf("unpackSpec: %v", err)
	}
}

func TestCheckpoint_ReadsOptions(t *testing.T) {
	const name = "containerd.runc.v1.CheckpointOptions"
	all, err := proto.Marshal(&runc.CheckpointOptions{
		Exit: true, OpenTcp: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true,
		EmptyNamespaces: []string{"network"}, CgroupsMode: "soft", ImagePath: "/elsewhere", WorkPath: "/w",
		ParentPath: "p",
	})
	testx.Must(t, err)
	// ImagePath is for containerd, which sends it as the path.
	want := process.CheckpointRequest{
		Path: "/i", WorkPath: "/w", ParentPath: "p", CgroupsMode: "soft", EmptyNamespaces: []string{"network"},
		Exit: true, OpenTCP: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true,
	}
	for name, tc := range map[string]struct {
		options *anypb.Any
		want    process.CheckpointRequest
	}{
		"no options leave all at its default": {nil, process.CheckpointRequest{Path: "/i"}},
		"an empty message does too":           {&anypb.Any{}, process.CheckpointRequest{Path: "/i"}},
		"every option":                        {&anypb.Any{TypeUrl: name, Value: all}, want},
		"every option with a URL in front":    {&anypb.Any{TypeUrl: "types.googleapis.com/" + name, Value: all}, want},
	} {
		got, err := checkpointRequest(&taskapi.CheckpointTaskRequest{ID: "c", Path: "/i", Options: tc.options})
		testx.Must(t, err)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: request (-want +got):\n%s", name, diff)
		}
	}
	for want, options := range map[string]*anypb.Any{
		`"containerd.runc.v1.Options"`:                {TypeUrl: "containerd.runc.v1.Options"},
		"decode containerd.runc.v1.CheckpointOptions": {TypeUrl: name, Value: []byte{0xff}},
	} {
		_, err := checkpointRequest(&taskapi.CheckpointTaskRequest{ID: "c", Options: options})
		testx.WantInvalid(t, err, want)
	}
}

func TestRegister_ServesEveryMethod(t *testing.T) {
	for _, file := range []protoreflect.FileDescriptor{
		taskapi.File_runtime_task_v2_shim_proto, taskapi3.File_runtime_task_v3_shim_proto,
		sandboxapi.File_runtime_sandbox_v1_sandbox_proto,
	} {
		service := file.Services().Get(0)
		t.Run(string(service.FullName()), func(t *testing.T) {
			w := newEnv(t, string(service.FullName()))
			for i := range service.Methods().Len() {
				name := string(service.Methods().Get(i).Name())
				if err := w.call(name, void, void); errdefs.IsNotImplemented(err) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := w.call("NoSuchMethod", void, void); !errdefs.IsNotImplemented(err) {
				t.Errorf("a method that does not exist: %v, want not implemented", err)
			}
		})
	}
}

// The messages of version 2 serve both versions of the task API.
func TestTask_VersionsHaveTheSameMessages(t *testing.T) {
	v2 := protodesc.ToFileDescriptorProto(taskapi.File_runtime_task_v2_shim_proto)
	v3 := protodesc.ToFileDescriptorProto(taskapi3.File_runtime_task_v3_shim_proto)
	for _, m := range v3.GetMessageType() {
		for _, f := range m.GetField() {
			if f.TypeName != nil {
				*f.TypeName = strings.Replace(*f.TypeName, ".containerd.task.v3.", ".containerd.task.v2.", 1)
			}
		}
	}
	if diff := cmp.Diff(v2.GetMessageType(), v3.GetMessageType(), protocmp.Transform()); diff != "" {
		t.Errorf("messages (-v2 +v3):\n%s", diff)
	}
}

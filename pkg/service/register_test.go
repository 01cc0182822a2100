// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
)

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

// sandboxService decodes and encodes messages by the numbers of their fields, which count from 1.
func TestSandbox_MessagesHaveTheseFields(t *testing.T) {
	want := map[string]string{
		"CreateSandboxRequest":  "sandbox_id bundle_path rootfs options netns_path annotations",
		"CreateSandboxResponse": "",
		"StartSandboxRequest":   "sandbox_id", "StartSandboxResponse": "pid created_at spec",
		"PlatformRequest": "sandbox_id", "PlatformResponse": "platform",
		"StopSandboxRequest": "sandbox_id timeout_secs", "StopSandboxResponse": "",
		"UpdateSandboxRequest": "sandbox_id resources annotations sandbox fields", "UpdateSandboxResponse": "",
		"WaitSandboxRequest": "sandbox_id", "WaitSandboxResponse": "exit_status exited_at",
		"SandboxStatusRequest":  "sandbox_id verbose",
		"SandboxStatusResponse": "sandbox_id pid state info created_at exited_at extra",
		"PingRequest":           "sandbox_id", "PingResponse": "",
		"ShutdownSandboxRequest": "sandbox_id", "ShutdownSandboxResponse": "",
		"SandboxMetricsRequest": "sandbox_id", "SandboxMetricsResponse": "metrics",
	}
	got := map[string]string{}
	messages := sandboxapi.File_runtime_sandbox_v1_sandbox_proto.Messages()
	for i := range messages.Len() {
		var names []string
		fields := messages.Get(i).Fields()
		for n := range fields.Len() {
			if f := fields.ByNumber(protoreflect.FieldNumber(n + 1)); f != nil {
				names = append(names, string(f.Name()))
			}
		}
		got[string(messages.Get(i).Name())] = strings.Join(names, " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

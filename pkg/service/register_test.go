// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A method that containerd adds to a service is noticed.
func TestEveryMethodIsServed(t *testing.T) {
	for _, file := range []protoreflect.FileDescriptor{
		taskapi.File_runtime_task_v2_shim_proto, taskapi3.File_runtime_task_v3_shim_proto, sandboxapi.File_runtime_sandbox_v1_sandbox_proto,
	} {
		service := file.Services().Get(0)
		t.Run(string(service.FullName()), func(t *testing.T) {
			w := newWorld(t, string(service.FullName()))
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

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
)

// CreateRequest asks for the container of a bundle, without input or output.
func (b *Bundle) CreateRequest() *task.CreateTaskRequest {
	return &task.CreateTaskRequest{ID: b.ID, Bundle: b.Path, Rootfs: b.Mounts}
}

// Run creates and starts the container of a bundle and returns its pid.
func (s *Shim) Run(b *Bundle) int {
	s.fake.Helper()
	_, err := s.Create(s.fake.Ctx, b.CreateRequest())
	s.fake.Must(err, "create "+b.ID)
	r, err := s.Start(s.fake.Ctx, &task.StartRequest{ID: b.ID})
	s.fake.Must(err, "start "+b.ID)
	return int(r.GetPid())
}

// ProcessSpec is an Any of a process that runs args, as containerd sends it for an exec.
func (f *Fake) ProcessSpec(change func(*specs.Process), args ...string) *anypb.Any {
	f.Helper()
	p := &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}}
	if change != nil {
		change(p)
	}
	spec, err := typeurl.MarshalAnyToProto(p)
	f.Must(err, "process spec")
	return spec
}

// RunExec adds an exec and starts it.
func (s *Shim) RunExec(id, execID string, args ...string) {
	s.fake.Helper()
	_, err := s.Exec(s.fake.Ctx,
		&task.ExecProcessRequest{ID: id, ExecID: execID, Spec: s.fake.ProcessSpec(nil, args...)})
	s.fake.Must(err, "exec "+execID)
	_, err = s.Start(s.fake.Ctx, &task.StartRequest{ID: id, ExecID: execID})
	s.fake.Must(err, "start "+execID)
}

// KillAndDelete ends a container and removes it and its bundle.
func (s *Shim) KillAndDelete(b *Bundle) {
	s.fake.Helper()
	_, err := s.Kill(s.fake.Ctx, &task.KillRequest{ID: b.ID, Signal: 9, All: true})
	s.fake.Must(err, "kill "+b.ID)
	_, err = s.Wait(s.fake.Ctx, &task.WaitRequest{ID: b.ID})
	s.fake.Must(err, "wait for "+b.ID)
	_, err = s.Delete(s.fake.Ctx, &task.DeleteRequest{ID: b.ID})
	s.fake.Must(err, "delete "+b.ID)
	s.fake.Remove(b)
}

// End asks the shim to shut down. The leak check sees whether it does.
func (s *Shim) End() {
	s.fake.Helper()
	// A shim may be gone before its answer is: containerd ignores this error too.
	_, _ = s.Shutdown(s.fake.Ctx, &task.ShutdownRequest{ID: "any"})
}

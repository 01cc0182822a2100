// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// FuzzCall calls every method of a shim without containers, but Shutdown, which ends it. A panic is seen, and each
// error has a code by which containerd knows what to do.
func FuzzCall(f *testing.F) {
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	tasks := task.New(&processtest.Runtime{}, queue, stdio.NewHost("ns", noReaper{}), nil, settings.Core())
	noPod := func(context.Context, pod.Request) (sandbox.Pod, error) { return nil, context.Canceled }
	pods := sandbox.New(tasks, noPod)
	all := groupOf(tasks, pods)
	methods := (&taskService{all, "ns", options.NewDefaults("")}).methods()
	shim := Shim{
		Events: queue, Clients: func() int { return 0 },
		Upgrade: func(_ context.Context, dryRun bool) (bool, error) { return dryRun, nil },
	}
	maps.Copy(methods, (&inspectService{shim, all}).methods())
	maps.Copy(methods, (&sandboxService{all}).methods())
	delete(methods, "Shutdown")
	names := make([]string, 0, len(methods))
	for name := range methods {
		names = append(names, name)
	}
	slices.Sort(names)
	spec := &anypb.Any{TypeUrl: specURL + "1/Process", Value: []byte(`{"args":["a"],"cwd":"/"}`)}
	for i, m := range []proto.Message{
		&taskapi.CreateTaskRequest{ID: "c1", Bundle: "/b", Stdout: "/o", Options: &anypb.Any{TypeUrl: "x"}},
		&taskapi.ExecProcessRequest{ID: "c1", ExecID: "e", Spec: spec},
		&taskapi.UpdateTaskRequest{ID: "c1", Resources: &anypb.Any{TypeUrl: specURL + "1/LinuxResources"}},
		&taskapi.KillRequest{ID: "c1", Signal: 65, All: true},
		&taskapi.ResizePtyRequest{ID: "c1", Width: math.MaxUint16 + 1},
		&taskapi.CheckpointTaskRequest{ID: "c1", Path: "/p"},
		&taskapi.StateRequest{},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		for j := range names {
			if (i+j)%3 == 0 || i < 3 {
				f.Add(uint8(j), data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, request []byte) {
		name := names[int(which)%len(names)]
		decoded := true
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // nothing waits
		_, err := methods[name](ctx, func(to any) error {
			m := to.(proto.Message)
			err := proto.Unmarshal(request, m)
			if create, ok := m.(*taskapi.CreateTaskRequest); ok {
				create.Bundle = "/nowhere" // no file of this machine
			}
			decoded = err == nil
			return err
		})
		if err == nil || !decoded {
			return
		}
		if code := status.Code(toStatus(err)); code == codes.OK || code == codes.Unknown {
			t.Errorf("%s(%q) = %v, of no class", name, request, err)
		}
	})
}

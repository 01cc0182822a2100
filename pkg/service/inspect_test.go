// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/protofield"
)

// inspect calls a method of the service, whose messages have no Go types.
func (w *env) inspect(method string, fields ...any) ([]byte, error) {
	w.t.Helper()
	w.name = inspectServiceName
	defer func() { w.name = taskV2 }()
	request, err := protofield.Encode(fields...)
	must(w.t, err)
	var m emptypb.Empty
	m.ProtoReflect().SetUnknown(request)
	var answer emptypb.Empty
	err = w.call(method, &m, &answer)
	return answer.ProtoReflect().GetUnknown(), err
}

func (w *env) inspectAll(id string) inspect.Answer {
	w.t.Helper()
	data, err := w.inspect("Inspect", id)
	must(w.t, err)
	var text string
	must(w.t, protofield.Decode(data, &text))
	var answer inspect.Answer
	must(w.t, json.Unmarshal([]byte(text), &answer))
	return answer
}

func TestInspect_TellsOfTheShimAndItsContainers(t *testing.T) {
	w := newEnv(t, taskV2)
	if got := w.inspectAll(""); len(got.Containers) != 0 || got.Containers == nil {
		t.Errorf("containers = %v, want an empty list", got.Containers)
	}
	w.create("c1")
	w.create("c2")
	w.must("Start", &api.StartRequest{ID: "c1"}, &api.StartResponse{})
	got := w.inspectAll("")
	if got.Shim.Version != "1.2.3" || got.Shim.Namespace != "ns" || got.Shim.Pid == 0 || got.Shim.Goroutines == 0 || got.Shim.Heap == 0 {
		t.Errorf("shim = %+v", got.Shim)
	}
	if len(got.Containers) != 2 || got.Containers[0].ID != "c1" || got.Containers[1].ID != "c2" {
		t.Fatalf("containers = %+v, want c1 and c2", got.Containers)
	}
	c1, c2 := got.Containers[0], got.Containers[1]
	if c1.State != "running" || c2.State != "created" || c1.Pid != w.runtime.PID || c1.Cgroup != w.runtime.Group.String() {
		t.Errorf("c1 = %+v\nc2 = %+v", c1, c2)
	}
	if c1.Launch.Init != inspect.ByLauncher || len(c1.Settings) == 0 {
		t.Errorf("c1 = %+v, want its launch and its settings", c1)
	}
	if one := w.inspectAll("c2"); len(one.Containers) != 1 || one.Containers[0].ID != "c2" {
		t.Errorf("Inspect of c2 = %+v", one.Containers)
	}
	if _, err := w.inspect("Inspect", "none"); !errdefs.IsNotFound(err) {
		t.Errorf("Inspect of an unknown container = %v, want not found", err)
	}
}

func TestInspect_StacksAreThoseOfAllGoroutines(t *testing.T) {
	w := newEnv(t, taskV2)
	data, err := w.inspect("Stacks")
	must(t, err)
	var text string
	truncated := true
	must(t, protofield.Decode(data, &text, &truncated))
	// The second has perhaps not begun to run.
	for _, want := range []string{"inspectService).Stacks", "created by sandbox.internal/shim/pkg/event.NewQueue"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %q", want, text)
		}
	}
}

// An answer fits into a message of ttrpc, however many execs there are.
func TestInspect_ExecsAreBoundedOverAllContainers(t *testing.T) {
	w := newEnv(t, taskV2)
	spec := packJSON(t, "Process", goodProcess())
	const each = inspect.MaxExecs/2 + 100
	for _, id := range []string{"c1", "c2", "c3"} {
		w.create(id)
		for i := range each {
			w.must("Exec", &api.ExecProcessRequest{ID: id, ExecID: fmt.Sprint("e", i), Spec: spec}, &emptypb.Empty{})
		}
	}
	listed := 0
	for _, c := range w.inspectAll("").Containers {
		if c.Execs.Known != each {
			t.Errorf("%s has %d execs, want %d", c.ID, c.Execs.Known, each)
		}
		listed += len(c.Execs.List)
	}
	if listed != inspect.MaxExecs {
		t.Errorf("%d execs are listed, want %d", listed, inspect.MaxExecs)
	}
}

func TestInspect_MessagesAreThoseOfTheProto(t *testing.T) {
	data, err := protofield.Encode([]byte("{}"))
	must(t, err)
	wantMessage(t, "inspect.proto", "InspectResponse", data, `{"json": "e30="}`)
	data, err = protofield.Encode("goroutine 1", true)
	must(t, err)
	wantMessage(t, "inspect.proto", "StacksResponse", data, `{"text": "goroutine 1", "truncated": true}`)
}

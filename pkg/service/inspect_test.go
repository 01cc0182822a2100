// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
	if c1.State != "running" || c2.State != "created" || c1.Pid != w.fake.pid || c1.Cgroup != w.fake.cgroup.String() {
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

func TestInspect_HistogramsCountOperations(t *testing.T) {
	w := newEnv(t, taskV2)
	w.create("c1")
	w.must("Start", &api.StartRequest{ID: "c1"}, &api.StartResponse{})
	w.must("Exec", &api.ExecProcessRequest{ID: "c1", ExecID: "e1", Spec: packJSON(t, "Process", goodProcess())}, &emptypb.Empty{})
	w.must("Start", &api.StartRequest{ID: "c1", ExecID: "e1"}, &api.StartResponse{})
	w.fake.fail("Create", errors.New("no"))
	if err := w.call("Create", &api.CreateTaskRequest{ID: "c2", Bundle: newBundle(t)}, &api.CreateTaskResponse{}); err == nil {
		t.Fatal("Create succeeded")
	}
	w.fake.fail("", nil)
	data, err := w.inspect("Histograms")
	must(t, err)
	var histograms []struct {
		Operation string
		Buckets   []struct{ Bound, Count uint64 }
		Sum       uint64
		Failed    uint64
	}
	var execs []struct {
		ID               string
		Started, Running uint64
	}
	must(t, protofield.Decode(data, &histograms, &execs))
	want := map[string][2]uint64{"create": {1, 1}, "start": {1, 0}, "exec": {1, 0}, "delete": {0, 0}}
	for _, h := range histograms {
		var count uint64
		for i, b := range h.Buckets {
			count += b.Count
			if last := i == len(h.Buckets)-1; last != (b.Bound == 0) || !last && b.Bound != uint64(bounds[i]) {
				t.Errorf("%s: bucket %d ends at %v", h.Operation, i, time.Duration(b.Bound))
			}
		}
		if got := [2]uint64{count, h.Failed}; got != want[h.Operation] || (count > 0) != (h.Sum > 0) {
			t.Errorf("%s: succeeded and failed = %v, in %v, want %v", h.Operation, got, time.Duration(h.Sum), want[h.Operation])
		}
		delete(want, h.Operation)
	}
	if len(want) > 0 {
		t.Errorf("no histogram of %v", want)
	}
	if len(execs) != 1 || execs[0].ID != "c1" || execs[0].Started != 1 || execs[0].Running != 1 {
		t.Errorf("execs = %+v, want one of c1", execs)
	}
}

func TestDurations_AreInTheBucketThatTheyFit(t *testing.T) {
	var d durations
	d.ended(opExec, 7*time.Millisecond, nil)
	d.ended(opExec, time.Hour, nil)
	if d[opExec].buckets[3].Load() != 1 || d[opExec].buckets[len(bounds)].Load() != 1 {
		t.Errorf("7 ms and an hour are counted as %+v", &d[opExec].buckets)
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

func TestDurations_PanicIsAFailure(t *testing.T) {
	w := newEnv(t, taskV2)
	w.fake.panics = "Create"
	if err := w.call("Create", &api.CreateTaskRequest{ID: "c1", Bundle: newBundle(t)}, &api.CreateTaskResponse{}); !errdefs.IsInternal(err) {
		t.Fatalf("Create that panics = %v, want an internal error", err)
	}
	data, err := w.inspect("Histograms")
	must(t, err)
	var histograms []struct {
		Operation string
		Buckets   []struct{ Bound, Count uint64 }
		Sum       uint64
		Failed    uint64
	}
	must(t, protofield.Decode(data, &histograms))
	create := histograms[opCreate]
	if create.Failed != 1 || create.Sum != 0 {
		t.Errorf("%s that panics is counted as %+v, want failed", create.Operation, create)
	}
}

func TestInspect_MessagesAreThoseOfTheProto(t *testing.T) {
	var d durations
	d.ended(opCreate, time.Hour, nil)
	d[opCreate].sum.Store(5)
	d[opCreate].failed.Store(6)
	all, err := d.encode()
	must(t, err)
	for i := range bounds { // to one bucket, the last
		if n := d[opCreate].buckets[i].Load(); n != 0 {
			t.Fatalf("bucket %d has %d", i, n)
		}
	}
	execs, err := protofield.Encode("c1", uint64(7), uint64(8))
	must(t, err)
	data, err := protofield.Encode(all[:1], [][]byte{execs})
	must(t, err)
	var buckets []string
	for _, b := range bounds {
		buckets = append(buckets, `{"boundNs": `+jsonNumber(b)+`}`)
	}
	buckets = append(buckets, `{"count": 1}`)
	wantMessage(t, "inspect.proto", "HistogramsResponse", data, `{
		"histograms": [{"operation": "create", "buckets": [`+strings.Join(buckets, ",")+`], "sumNs": 5, "failed": 6}],
		"execs": [{"containerId": "c1", "started": 7, "running": 8}]}`)
	data, err = protofield.Encode([]byte("{}"))
	must(t, err)
	wantMessage(t, "inspect.proto", "InspectResponse", data, `{"json": "e30="}`)
	data, err = protofield.Encode("goroutine 1", true)
	must(t, err)
	wantMessage(t, "inspect.proto", "StacksResponse", data, `{"text": "goroutine 1", "truncated": true}`)
}

func jsonNumber(v any) string {
	text, _ := json.Marshal(v) // a number has JSON
	return string(text)
}

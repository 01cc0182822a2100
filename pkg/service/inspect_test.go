// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/protofield"
)

// inspect calls a method of the service, whose messages have no Go types.
func (w *env) inspect(method string, fields ...any) ([]byte, error) {
	w.t.Helper()
	w.name = bootstrap.OwnService
	defer func() { w.name = taskV2 }()
	request, err := protofield.Encode(fields...)
	testx.Must(w.t, err)
	var m emptypb.Empty
	m.ProtoReflect().SetUnknown(request)
	var answer emptypb.Empty
	err = w.call(method, &m, &answer)
	return answer.ProtoReflect().GetUnknown(), err
}

func (w *env) inspectAll(id string) inspect.Answer {
	w.t.Helper()
	data, err := w.inspect("Inspect", id)
	testx.Must(w.t, err)
	var text string
	testx.Must(w.t, protofield.Decode(data, &text))
	var answer inspect.Answer
	testx.Must(w.t, json.Unmarshal([]byte(text), &answer))
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
	testx.Must(t, err)
	var text string
	testx.Must(t, protofield.Decode(data, &text))
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
	testx.Must(t, err)
	wantMessage(t, "inspect.proto", "InspectResponse", data, `{"json": "e30="}`)
	data, err = protofield.Encode("goroutine 1")
	testx.Must(t, err)
	wantMessage(t, "inspect.proto", "StacksResponse", data, `{"text": "goroutine 1"}`)
}

// readProto are the messages of inspect.proto, which have only what this reads.
func readProto(t *testing.T, name string) protoreflect.FileDescriptor {
	t.Helper()
	text, err := os.ReadFile(name)
	testx.Must(t, err)
	file := &descriptorpb.FileDescriptorProto{
		Name: new(name), Package: new("io.containerd.sandbox.v1"), Syntax: new("proto3"),
		Dependency: []string{"google/protobuf/timestamp.proto"},
	}
	scalars := map[string]descriptorpb.FieldDescriptorProto_Type{
		"string": descriptorpb.FieldDescriptorProto_TYPE_STRING, "uint32": descriptorpb.FieldDescriptorProto_TYPE_UINT32,
		"uint64": descriptorpb.FieldDescriptorProto_TYPE_UINT64, "bool": descriptorpb.FieldDescriptorProto_TYPE_BOOL,
		"bytes": descriptorpb.FieldDescriptorProto_TYPE_BYTES,
	}
	message := regexp.MustCompile(`(?ms)^message (\w+) \{\n(.*?)^\}`)
	field := regexp.MustCompile(`(?m)^  (repeated )?([\w.]+) (\w+) = (\d+);`)
	for _, m := range message.FindAllStringSubmatch(string(text), -1) {
		d := &descriptorpb.DescriptorProto{Name: new(m[1])}
		for _, f := range field.FindAllStringSubmatch(m[2], -1) {
			number, err := strconv.Atoi(f[4])
			testx.Must(t, err)
			one := &descriptorpb.FieldDescriptorProto{
				Name: new(f[3]), Number: new(int32(number)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}
			if f[1] != "" {
				one.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			}
			if scalar, ok := scalars[f[2]]; ok {
				one.Type = scalar.Enum()
			} else {
				one.Type, one.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), new(f[2])
			}
			d.Field = append(d.Field, one)
		}
		file.MessageType = append(file.MessageType, d)
	}
	made, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	testx.Must(t, err)
	return made
}

// wantMessage decodes data as a message of a proto file, and compares it with one in JSON.
func wantMessage(t *testing.T, file, name string, data []byte, want string) {
	t.Helper()
	d := readProto(t, file).Messages().ByName(protoreflect.Name(name))
	got, expected := dynamicpb.NewMessage(d), dynamicpb.NewMessage(d)
	testx.Must(t, proto.Unmarshal(data, got))
	testx.Must(t, protojson.Unmarshal([]byte(want), expected))
	if !proto.Equal(got, expected) {
		t.Errorf("%s = %v\nwant %v", name, got, expected)
	}
	if len(got.GetUnknown()) > 0 {
		t.Errorf("%s has fields that %s does not", name, file)
	}
}

// upgrade says in a dry run that there would be one.
func (*env) upgrade(_ context.Context, dryRun bool) (bool, error) { return dryRun, nil }

func TestUpgrade_IsAnsweredByTheProgramThatRuns(t *testing.T) {
	w := newEnv(t, taskV2)
	for dryRun, want := range []uint32{0, 1} {
		data, err := w.inspect("Upgrade", "", uint32(dryRun))
		testx.Must(t, err)
		var version string
		var upgraded uint32
		testx.Must(t, protofield.Decode(data, &version, &upgraded))
		if version != "1.2.3" || upgraded != want {
			t.Errorf("dry run %d: version %q, upgraded %d, want 1.2.3 and %d", dryRun, version, upgraded, want)
		}
	}
	if r := UpgradeAnswer("1.2.3", nil); r.Status.Code != 0 || len(r.Payload) == 0 {
		t.Errorf("answer %v", r)
	}
	r := UpgradeAnswer("1.2.3", fmt.Errorf("no: %w", errdefs.ErrInternal))
	if r.Status.Code != int32(codes.Internal) || !strings.Contains(r.Status.Message, "no") || len(r.Payload) > 0 {
		t.Errorf("answer %v", r)
	}
}

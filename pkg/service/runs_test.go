// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/task"
)

// readProto are the messages of runs.proto or inspect.proto, which have only what this reads.
func readProto(t *testing.T, name string) protoreflect.FileDescriptor {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
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
			if err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// wantMessage decodes data as a message of a proto file, and compares it with one in JSON.
func wantMessage(t *testing.T, file, name string, data []byte, want string) {
	t.Helper()
	d := readProto(t, file).Messages().ByName(protoreflect.Name(name))
	got, expected := dynamicpb.NewMessage(d), dynamicpb.NewMessage(d)
	if err := proto.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal([]byte(want), expected); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, expected) {
		t.Errorf("%s = %v\nwant %v", name, got, expected)
	}
	if len(got.GetUnknown()) > 0 {
		t.Errorf("%s has fields that %s does not", name, file)
	}
}

func TestRuns_VerdictIsThatOfTheProto(t *testing.T) {
	data, err := encodeVerdict(limit.Verdict{
		Container: "c1", Exec: "e1", Pid: 7, Started: time.Unix(1, 2), Ended: time.Unix(3, 4), Status: 137,
		Signal: unix.SIGKILL, Limit: limit.CPUTime, Wall: 9, CPU: 10, User: 11, System: 12, MemoryPeak: 13, OOMKills: 14,
		ForksRefused: 15, Stdout: limit.Stream{Written: 16, Dropped: 17}, Stderr: limit.Stream{Written: 18},
	})
	if err == nil {
		data, err = protofield.Encode([][]byte{data, {}})
	}
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, "runs.proto", "VerdictsResponse", data, `{"verdicts": [{
		"containerId": "c1", "execId": "e1", "pid": 7, "startedAt": "1970-01-01T00:00:01.000000002Z",
		"endedAt": "1970-01-01T00:00:03.000000004Z", "status": 137, "signal": 9, "limit": "cpu-time", "wallNs": 9, "cpuNs": 10,
		"userNs": 11, "systemNs": 12, "memoryPeak": 13, "oomKills": 14, "forksRefused": 15,
		"stdout": {"written": 16, "dropped": 17}, "stderr": {"written": 18}}, {}]}`)
}

func TestRuns_ProcessesAreThoseOfTheProto(t *testing.T) {
	first, err := encodeProcess(task.ProcessInfo{
		Pid: 7, Exec: "e1", First: true, Name: "sh", Started: time.Unix(1, 0), CPU: 8, RSS: 9,
	})
	if err == nil {
		first, err = protofield.Encode([][]byte{first}, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, "runs.proto", "ProcessesResponse", first, `{"processes": [{
		"pid": 7, "execId": "e1", "first": true, "name": "sh", "startedAt": "1970-01-01T00:00:01Z", "cpuNs": 8, "rss": 9}],
		"partial": true}`)
}

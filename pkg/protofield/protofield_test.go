// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package protofield_test

import (
	"strings"
	"testing"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/protofield"
)

// decode decodes a message with each kind of field but numbers.
func decode(data []byte) (*sandboxapi.CreateSandboxRequest, error) {
	m := &sandboxapi.CreateSandboxRequest{}
	err := protofield.Decode(data, &m.SandboxID, &m.BundlePath, &m.Rootfs, &m.Options, &m.NetnsPath, &m.Annotations)
	return m, err
}

// FuzzDecode holds that Decode accepts and refuses what the library does, and reads the same.
func FuzzDecode(f *testing.F) {
	data, err := proto.Marshal(&sandboxapi.CreateSandboxRequest{
		SandboxID: "s", BundlePath: "/b", Rootfs: []*types.Mount{
			{Type: "t", Options: []string{"o"}}, {},
		}, Options: &anypb.Any{TypeUrl: "u", Value: []byte{1}},
		NetnsPath: "/n", Annotations: map[string]string{"a": "1", "": ""},
	})
	testx.Must(f, err)
	f.Add(data)
	f.Add(append(data, data...))                 // a message in two pieces is merged
	f.Add([]byte{1 << 3, 5})                     // a number in place of a string is skipped
	f.Add([]byte{9<<3 | 3, 1 << 3, 5, 9<<3 | 4}) // an unknown group
	f.Add([]byte{1<<3 | 2, 5, 'a'})              // cut off
	f.Add([]byte("\xf8\xf8\xcb\xcb00"))          // a number that no field has
	f.Fuzz(func(t *testing.T, data []byte) {
		want := &sandboxapi.CreateSandboxRequest{}
		wantErr := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, want)
		if wantErr != nil && strings.Contains(wantErr.Error(), "UTF-8") { // which Decode takes as it is
			return
		}
		got, err := decode(data)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("Decode: %v, the library: %v", err, wantErr)
		}
		if err == nil && !proto.Equal(discardUnknown(t, got), want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

// discardUnknown drops the unknown fields of messages in m.
func discardUnknown(t *testing.T, m *sandboxapi.CreateSandboxRequest) proto.Message {
	t.Helper()
	data, err := proto.Marshal(m)
	testx.Must(t, err)
	known := &sandboxapi.CreateSandboxRequest{}
	testx.Must(t, (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, known))
	return known
}

func TestDecode_Numbers(t *testing.T) {
	data, err := proto.Marshal(&sandboxapi.SandboxStatusRequest{Verbose: true})
	testx.Must(t, err)
	var verbose bool
	if err := protofield.Decode(data, nil, &verbose); err != nil || !verbose {
		t.Errorf("verbose = %t, %v, want true", verbose, err)
	}
	if data, err = proto.Marshal(&timestamppb.Timestamp{Seconds: -1, Nanos: -2}); err != nil {
		t.Fatal(err)
	}
	var seconds int64
	var nanos int32
	if err := protofield.Decode(data, &seconds, &nanos); err != nil || seconds != -1 || nanos != -2 {
		t.Errorf("seconds and nanos = %d, %d, %v, want -1 and -2", seconds, nanos, err)
	}
}

func TestEncode_IsReadByTheLibrary(t *testing.T) {
	var none *timestamppb.Timestamp
	for _, want := range []*sandboxapi.SandboxStatusResponse{
		{},
		{
			SandboxID: "s", Pid: 1 << 31, State: "READY", Info: map[string]string{"a": "1"},
			CreatedAt: &timestamppb.Timestamp{Seconds: 5}, ExitedAt: &timestamppb.Timestamp{},
		},
		{CreatedAt: none},
	} {
		var info []any
		for key, value := range want.Info {
			info = []any{key, value}
		}
		data, err := protofield.Encode(want.SandboxID, want.Pid, want.State, info, want.CreatedAt, want.ExitedAt)
		testx.Must(t, err)
		got := &sandboxapi.SandboxStatusResponse{}
		if err := proto.Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
			t.Errorf("the library reads %v, %v, want %v", got, err, want)
		}
	}
}

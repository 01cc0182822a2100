// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/process"
)

func TestCheckpointRequest(t *testing.T) {
	const name = "containerd.runc.v1.CheckpointOptions"
	all, err := proto.Marshal(&runc.CheckpointOptions{
		Exit: true, OpenTcp: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true,
		EmptyNamespaces: []string{"network"}, CgroupsMode: "soft", ImagePath: "/elsewhere", WorkPath: "/w", ParentPath: "p",
	})
	if err != nil {
		t.Fatal(err)
	}
	// ImagePath is for containerd, which sends it as the path.
	want := process.CheckpointRequest{
		Path: "/i", WorkPath: "/w", ParentPath: "p", CgroupsMode: "soft", EmptyNamespaces: []string{"network"},
		Exit: true, OpenTCP: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true,
	}
	for _, tc := range []struct {
		name    string
		options *anypb.Any
		want    process.CheckpointRequest
	}{
		{"no options leave all at its default", nil, process.CheckpointRequest{Path: "/i"}},
		{"an empty message does too", &anypb.Any{}, process.CheckpointRequest{Path: "/i"}},
		{"every option", &anypb.Any{TypeUrl: name, Value: all}, want},
		{"every option with a URL in front", &anypb.Any{TypeUrl: "types.googleapis.com/" + name, Value: all}, want},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := checkpointRequest(&api.CheckpointTaskRequest{ID: "c", Path: "/i", Options: tc.options})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckpointRequestRefuses(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options *anypb.Any
		want    string
	}{
		{"another message", &anypb.Any{TypeUrl: "containerd.runc.v1.Options"}, `"containerd.runc.v1.Options"`},
		{"bytes that are no message", &anypb.Any{TypeUrl: "containerd.runc.v1.CheckpointOptions", Value: []byte{0xff}}, "decode containerd.runc.v1.CheckpointOptions"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := checkpointRequest(&api.CheckpointTaskRequest{ID: "c", Options: tc.options})
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("checkpointRequest = %v, want an invalid argument that says %q", err, tc.want)
			}
		})
	}
}

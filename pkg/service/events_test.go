// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/event"
)

// all is each event with all of its fields. The topics are those of
// containerd's core/runtime/events.go, as text: a constant of theirs would move
// with them, and what runs elsewhere would not.
func allEvents() []struct {
	event event.Event
	topic string
	want  proto.Message
} {
	at, stamp := time.Unix(5, 6), &timestamppb.Timestamp{Seconds: 5, Nanos: 6}
	return []struct {
		event event.Event
		topic string
		want  proto.Message
	}{
		{
			event.TaskCreate{
				ContainerID: "c", Bundle: "/b", Checkpoint: "/cp", Pid: 7,
				Rootfs: []event.Mount{{Type: "t", Source: "s", Target: "g", Options: []string{"o", "p"}}, {Type: "u"}},
				Stdin:  "i", Stdout: "o", Stderr: "e", Terminal: true,
			},
			"/tasks/create",
			&events.TaskCreate{
				ContainerID: "c", Bundle: "/b", Checkpoint: "/cp", Pid: 7,
				Rootfs: []*types.Mount{{Type: "t", Source: "s", Target: "g", Options: []string{"o", "p"}}, {Type: "u"}},
				IO:     &events.TaskIO{Stdin: "i", Stdout: "o", Stderr: "e", Terminal: true},
			},
		},
		{event.TaskStart{ContainerID: "c", Pid: 7}, "/tasks/start", &events.TaskStart{ContainerID: "c", Pid: 7}},
		{event.TaskOOM{ContainerID: "c"}, "/tasks/oom", &events.TaskOOM{ContainerID: "c"}},
		{
			event.TaskExit{ContainerID: "c", ID: "e", Pid: 7, Status: 137, At: at},
			"/tasks/exit",
			&events.TaskExit{ContainerID: "c", ID: "e", Pid: 7, ExitStatus: 137, ExitedAt: stamp},
		},
		{
			event.TaskDelete{ContainerID: "c", ID: "e", Pid: 7, Status: 137, At: at},
			"/tasks/delete",
			&events.TaskDelete{ContainerID: "c", ID: "e", Pid: 7, ExitStatus: 137, ExitedAt: stamp},
		},
		{event.TaskExecAdded{ContainerID: "c", ExecID: "e"}, "/tasks/exec-added", &events.TaskExecAdded{ContainerID: "c", ExecID: "e"}},
		{event.TaskExecStarted{ContainerID: "c", ExecID: "e", Pid: 7}, "/tasks/exec-started", &events.TaskExecStarted{ContainerID: "c", ExecID: "e", Pid: 7}},
		{event.TaskPaused{ContainerID: "c"}, "/tasks/paused", &events.TaskPaused{ContainerID: "c"}},
		{event.TaskResumed{ContainerID: "c"}, "/tasks/resumed", &events.TaskResumed{ContainerID: "c"}},
		{event.TaskCheckpointed{ContainerID: "c", Checkpoint: "/cp"}, "/tasks/checkpointed", &events.TaskCheckpointed{ContainerID: "c", Checkpoint: "/cp"}},
	}
}

func TestPublish_TopicsAndMessages(t *testing.T) {
	for _, tc := range allEvents() {
		topic, m := message(tc.event)
		if topic != tc.topic {
			t.Errorf("topic of %T = %q, want %q", tc.event, topic, tc.topic)
		}
		packed, err := typeurl.MarshalAnyToProto(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := typeurl.UnmarshalAny(packed)
		if err != nil {
			t.Fatalf("%s: containerd reads: %v", topic, err)
		}
		wantEqual(t, topic, got.(proto.Message), tc.want)
		// The table sets each field, so that a new one is noticed.
		fields := tc.want.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if !tc.want.ProtoReflect().Has(fields.Get(i)) {
				t.Errorf("%T: field %s is not compared", tc.want, fields.Get(i).Name())
			}
		}
	}
}

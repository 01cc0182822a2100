// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
)

func TestChangeBy(t *testing.T) {
	for _, tc := range []struct {
		event any
		id    string
		of    change
	}{
		{&eventtypes.TaskCreate{ContainerID: "c"}, "c", ofContainer},
		{&eventtypes.TaskStart{ContainerID: "c"}, "c", ofContainer},
		{&eventtypes.TaskPaused{ContainerID: "c"}, "c", ofContainer},
		{&eventtypes.TaskExit{ContainerID: "c", ID: "c"}, "c", ofContainer},
		{&eventtypes.TaskExit{ContainerID: "c", ID: "e"}, "c", ofExecs},
		{&eventtypes.TaskExecStarted{ContainerID: "c", ExecID: "e"}, "c", ofExecs},
		{&eventtypes.TaskExecAdded{ContainerID: "c", ExecID: "e"}, "", nothing},
		{&eventtypes.TaskDelete{ContainerID: "c"}, "c", ofContainer},
		{&eventtypes.TaskDelete{ContainerID: "c", ID: "e"}, "", nothing},
		{&eventtypes.TaskOOM{ContainerID: "c"}, "", nothing},
		{&eventtypes.ContainerCreate{ID: "c"}, "c", ofContainer},
		{&eventtypes.ContainerDelete{ID: "c"}, "c", ofContainer},
		{&eventtypes.SandboxStart{SandboxID: "s"}, "s", ofContainer},
		{&eventtypes.ImageCreate{Name: "i"}, "", nothing},
	} {
		if id, of := changeBy(tc.event); id != tc.id || of != tc.of {
			t.Errorf("changeBy(%T) = %q, %d, want %q, %d", tc.event, id, of, tc.id, tc.of)
		}
	}
}

// A containerd that is stopped tells no change, and does not hang up.
func TestSnapshot_AsksContainerdAlsoWhereNothingHasChanged(t *testing.T) {
	n, containerd := newNode(t)
	containerd.set("c1")
	for range 3 {
		snapshot(t, n)
	}
	n.config.Timeout = 100 * time.Millisecond
	containerd.hangs.Store(true)
	if _, err := n.Snapshot(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a snapshot of a containerd that hangs: %v, want %v", err, context.DeadlineExceeded)
	}
	containerd.hangs.Store(false)
	n.config.Timeout = 10 * time.Second
	snapshot(t, n)
}

// Nobody may ask for a long time.
func TestWatch_IsBounded(t *testing.T) {
	n, _ := newNode(t)
	for i := range mostChanges + 1 {
		id := fmt.Sprint(i)
		n.told(t, &eventtypes.TaskCreate{ContainerID: id})
		n.told(t, &eventtypes.TaskExecStarted{ContainerID: id, ExecID: "e"})
	}
	got := n.watch.take()
	if len(got.containers)+len(got.execs) > mostChanges || !got.all {
		t.Errorf("%d containers and %d execs wait, all: %t", len(got.containers), len(got.execs), got.all)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

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
		{&eventtypes.TaskOOM{ContainerID: "c"}, "c", ofMemory},
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

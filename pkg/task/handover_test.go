// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"testing"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
)

// containerd asks for the state of a container whose deletion it has not heard of.
func TestHandOver_WhatWasDeletedIsRemembered(t *testing.T) {
	r := newRuntime()
	m := newManager(t, r)
	end(t, m, create(t, m, "c1", goodSpec()))
	testx.Must(t, m.Freeze(t.Context()))
	defer m.Thaw()
	state, err := m.Save(&handover.Saver{})
	testx.Must(t, err)
	text, err := json.Marshal(state)
	testx.Must(t, err)
	var restored State
	testx.Must(t, json.Unmarshal(text, &restored))
	successor := newManager(t, r)
	begin, err := successor.Restore(&handover.Loader{}, &restored)
	testx.Must(t, err)
	begin()
	status, err := successor.Status("c1", "")
	testx.Must(t, err)
	if status.State != process.Deleted || status.Exit.Status != 137 {
		t.Errorf("status of a container that the former program deleted = %+v", status)
	}
}

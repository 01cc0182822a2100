// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package processtest

import (
	"fmt"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
)

// What a successor needs is tested with real containers.
var errNotHere = fmt.Errorf("processtest: hand over: %w", errdefs.ErrNotImplemented)

// Restore implements process.Runtime.
func (*Runtime) Restore(*handover.Loader, process.Config, json.RawMessage) (process.RuntimeContainer, error) {
	return nil, errNotHere
}

// Save implements process.RuntimeContainer.
func (*Container) Save(*handover.Saver, process.Handle, bool) (any, error) { return nil, errNotHere }

// RestoreExec implements process.RuntimeContainer.
func (*Container) RestoreExec(json.RawMessage, *limit.Limits) (process.Handle, process.ExecCgroup, error) {
	return nil, nil, errNotHere
}

// Save implements process.Handle.
func (*Process) Save() any { return nil }

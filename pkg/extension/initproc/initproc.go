// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package initproc makes a small init of the runtime the container's first process, which reaps orphans and forwards
// signals.
package initproc

import (
	"context"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Extension returns the extension init.
func Extension() extension.Extension {
	return extension.Extension{
		Name:     "init",
		Settings: []settings.Setting{{Name: "init", Option: "Init", Bool: true, Default: "false"}},
		New: func(values settings.Values) (*extension.Part, error) {
			on, err := values.Of("init").Bool()
			if err != nil || !on {
				return nil, err
			}
			return &extension.Part{Hook: hook{}, NoCheckpoint: "setting init = true: such a container"}, nil
		},
	}
}

type hook struct{ process.NoHook }

// Prepare implements [process.Hook].
func (hook) Prepare(_ context.Context, c *process.Config) error {
	c.Init = true
	return nil
}

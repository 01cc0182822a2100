// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package extension is what the core of the shim and its extensions know of each other. An [Extension] gives containers
// something that containerd does not ask for. Each is a package below this one, and a line of the list in
// cmd/containerd-shim-sandbox-v1/extensions.go. No package of the core imports one.
package extension

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Extension is something that a container can have.
type Extension struct {
	Name     string             // key of its record in the state of a container on disk
	Settings []settings.Setting // its annotations and runtime options
	// New checks the values of the settings, and returns what the container gets; nil for nothing. It changes nothing.
	// Errors name the setting, and are of class errdefs.ErrInvalidArgument if the value is wrong.
	New func(settings.Values) (*Part, error)
	// CleanUp is called by the delete command after the processes of a container without a shim have ended, and before
	// its root file system is unmounted. It can be called again. nil: the extension leaves nothing.
	CleanUp func(context.Context, Left) error
}

// Part is what one container has of an extension. Fields other than Hook may be nil.
type Part struct {
	process.Hook
	// NoCheckpoint is the subject of the error that refuses a checkpoint or a restore of the container; empty: both are
	// possible.
	NoCheckpoint string
	// AwaitReady keeps a Start of init, which was not restored, from returning. If it returns an error, init has exited.
	AwaitReady func(init *process.Process) error
	// Inspect adds what is known to the answer.
	Inspect func(*inspect.ContainerInfo)
	// Record is what CleanUp has to know, as JSON. It is called before Prepare, and again after Created.
	Record func() any

	name string
}

// Left is a container whose shim is dead.
type Left struct {
	ID, Bundle string
	Pid        int             // of init; 0 if the shim died while it created the container
	Record     json.RawMessage // nil if there is none
}

// List has the extensions of a program. Their hooks are called in its order.
type List []Extension

// Settings returns the settings of the core and of the extensions.
func (l List) Settings() settings.Table {
	table := settings.Core()
	for _, e := range l {
		table = append(table, e.Settings...)
	}
	return table
}

// New returns what a container has of the extensions.
func (l List) New(values settings.Values) (parts []*Part, err error) {
	for _, e := range l {
		part, err := e.New(values)
		if err != nil {
			return nil, err
		}
		if part != nil {
			part.name = e.Name
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// Records returns the records of parts by the names of their extensions.
func Records(parts []*Part) (map[string]json.RawMessage, error) {
	records := map[string]json.RawMessage{}
	for _, p := range parts {
		if p.Record == nil {
			continue
		}
		text, err := json.Marshal(p.Record())
		if err != nil {
			return nil, fmt.Errorf("record of %s: %w", p.name, err)
		}
		records[p.name] = text
	}
	return records, nil
}

// CleanUp removes what the extensions made for a container whose shim is dead, in the reverse order of the list.
func (l List) CleanUp(ctx context.Context, left Left, records map[string]json.RawMessage) error {
	var errs []error
	for _, e := range slices.Backward(l) {
		if e.CleanUp != nil {
			left.Record = records[e.Name]
			errs = append(errs, e.CleanUp(ctx, left))
		}
	}
	return errors.Join(errs...)
}

// RefuseCheckpoint returns an error of the given class if one of parts cannot be checkpointed or restored, as refused
// says.
func RefuseCheckpoint(parts []*Part, refused string, class error) error {
	for _, p := range parts {
		if p.NoCheckpoint != "" {
			return fmt.Errorf("%s %s: %w", p.NoCheckpoint, refused, class)
		}
	}
	return nil
}

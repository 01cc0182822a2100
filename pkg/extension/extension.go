// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package extension connects the core of the shim and its extensions, which are the packages below this one and listed
// in cmd/containerd-shim-sandbox-v1/extensions.go. No package of the core imports one.
package extension

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Extension gives containers something that containerd does not ask for.
type Extension struct {
	Name     string             // key of its record in the state of a container on disk
	Settings []settings.Setting // its annotations and runtime options
	// New checks the values of the settings without changing anything, and returns what the container gets, or nil.
	// Errors name the setting; for a wrong value they are errdefs.ErrInvalidArgument.
	New func(settings.Values) (*Part, error)
	// CleanUp is called by the delete command, perhaps again, after the processes of a container without a shim have
	// ended, and before its root file system is unmounted. It may be nil.
	CleanUp func(context.Context, Left) error
}

// Part is one container's part of an extension. Fields other than Hook may be nil.
type Part struct {
	process.Hook
	// NoCheckpoint is the subject of the error that refuses a checkpoint or a restore; empty: both are possible.
	NoCheckpoint string
	// AwaitReady delays the return of init's Start, except after a restore. After an error init has exited.
	AwaitReady func(init *process.Process) error
	Inspect    func(*inspect.ContainerInfo)
	// Record returns CleanUp's JSON record. It is called before Prepare, and again after Created.
	Record func() any
	// Sleeper freezes the container while nobody uses it.
	Sleeper process.Sleeper
	// State is what a successor of this program has to know to undo what Hook did; nil: nothing.
	State State

	name string
}

// State is handed over from a part to that of a successor, which List.New made of the same settings.
type State interface {
	// Save returns what Restore is to have, as a value for JSON. From then on nothing changes until thaw.
	Save(h *handover.Saver) (state any, thaw func())
	// Restore takes the place of the hook's Prepare and Created. If the hook is a process.Resumer, it does nothing before
	// Resumed.
	Restore(l *handover.Loader, state json.RawMessage, c *process.Config) error
}

// Resumed implements [process.Resumer].
func (p *Part) Resumed(c process.RuntimeContainer) {
	if r, ok := p.Hook.(process.Resumer); ok {
		r.Resumed(c)
	}
}

// Save returns the states of parts by the names of their extensions, which stay as they are until thaw.
func Save(parts []*Part, h *handover.Saver) (states map[string]json.RawMessage, thaw func(), err error) {
	states = map[string]json.RawMessage{}
	var thaws []func()
	thaw = func() {
		for _, one := range thaws {
			one()
		}
	}
	for _, p := range parts {
		if p.State == nil {
			continue
		}
		state, one := p.State.Save(h)
		thaws = append(thaws, one)
		if states[p.name], err = json.Marshal(state); err != nil {
			thaw()
			return nil, nil, fmt.Errorf("state of %s: %w", p.name, err)
		}
	}
	return states, thaw, nil
}

// Restore gives parts the states of Save.
func Restore(parts []*Part, l *handover.Loader, states map[string]json.RawMessage, c *process.Config) error {
	for _, p := range parts {
		if p.State == nil {
			continue
		}
		if err := p.State.Restore(l, states[p.name], c); err != nil {
			return fmt.Errorf("state of %s: %w", p.name, err)
		}
	}
	return nil
}

// Left is a container whose shim is dead.
type Left struct {
	ID, Bundle string
	Pid        int             // of init; 0 if the shim died while it created the container
	Record     json.RawMessage // nil if there is none
}

// List has the extensions of a program, in the order of their hooks.
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

// CleanUp removes what extensions left of a container whose shim is dead, in the reverse order.
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

// RefuseCheckpoint returns an error of the given class if a part allows no checkpoint or restore.
func RefuseCheckpoint(parts []*Part, refused string, class error) error {
	for _, p := range parts {
		if p.NoCheckpoint != "" {
			return fmt.Errorf("%s %s: %w", p.NoCheckpoint, refused, class)
		}
	}
	return nil
}

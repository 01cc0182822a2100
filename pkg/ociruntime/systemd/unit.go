// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"sync/atomic"

	"github.com/opencontainers/cgroups"
)

// Unit is libcontainer's manager of a scope that is to be made. Unlike that it stops no unit that it has not made: one
// of the same name is another container's, or the administrator's.
type Unit struct {
	cgroups.Manager
	made atomic.Bool
}

// Apply implements cgroups.Manager.
func (u *Unit) Apply(pid int) error {
	err := u.Manager.Apply(pid)
	u.Applied(err)
	return err
}

// Applied notes the error, or nil, of an Apply by another manager of the same unit.
func (u *Unit) Applied(err error) { u.made.Store(!UnitExists(err)) } // after other errors systemd may have it

// Made reports whether Apply may have made the unit, and Destroy has not stopped it since.
func (u *Unit) Made() bool { return u.made.Load() }

// Destroy implements cgroups.Manager. It does nothing if the unit is not made.
func (u *Unit) Destroy() error {
	if !u.Made() {
		return nil
	}
	err := u.Manager.Destroy()
	u.made.Store(err != nil)
	return err
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"

	"sandbox.internal/shim/pkg/cgroup"
)

// restoreProperties sets the properties of the scope to what the files of
// cgroup v2 said. libcontainer makes properties of the files that systemd
// knows, before it writes to the files (cgroups v0.1.0 systemd/v2.go, Set), but
// of no empty one. That one of the files is refused does not matter: their
// order is not that of a snapshot's Restore, which follows.
func (s *scope) restoreProperties(snapshot *cgroup.Snapshot) error {
	unified := map[string]string{}
	var none []dbus.Property
	for path, text := range snapshot.Texts() {
		file := filepath.Base(path)
		if text != "" {
			unified[file] = text
		} else if name, ok := cpusetProperties[file]; ok {
			none = append(none, dbus.Property{Name: name, Value: godbus.MakeVariant([]byte{})})
		}
	}
	var err error
	if len(none) > 0 {
		err = s.setProperties(context.Background(), none...)
	}
	if err == nil {
		err = s.Set(&cgroups.Resources{SkipDevices: true, Unified: unified})
	}
	if _, refused := errors.AsType[*fs.PathError](err); refused || err == nil {
		return nil
	}
	return fmt.Errorf("properties of the unit: %w", err)
}

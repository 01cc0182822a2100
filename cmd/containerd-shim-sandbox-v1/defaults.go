// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"maps"
	"slices"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/pidfile"
	"sandbox.internal/shim/pkg/settings"
)

// readDefaults returns the content of the default configuration file as JSON, "" without a file. The error is that of
// the first container that would be refused because of it, for each namespace. Not checked is whether directories and
// the cgroup for a shim exist, and criu.
func readDefaults(file string) (text string, err error) {
	all, text, err := options.NewDefaults(file).All()
	for _, namespace := range slices.Sorted(maps.Keys(all)) {
		err = errors.Join(err, checkDefaults(all[namespace]))
	}
	return text, err
}

func checkDefaults(o options.Options) error {
	set, err := settings.Parse(&specs.Spec{}, o, "namespace", "id")
	if err != nil {
		return err
	}
	if set.CPUSetSource.IsSet() {
		err = cpuset.CheckMode(cgroups.Mode(), set.CPUSetSource)
	}
	if set.Listen.IsSet() {
		_, invalid := listen.Read(set.Listen)
		err = errors.Join(err, invalid)
	}
	if set.PidFile.IsSet() {
		invalid := pidfile.CheckPath(set.PidFile)
		err = errors.Join(err, invalid)
	}
	_, invalid := hostrootfs.Parse(set.HostRootfs, set.HostRootfsMask, set.HostRootfsUser)
	return errors.Join(err, invalid)
}

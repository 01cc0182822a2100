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
	"sandbox.internal/shim/pkg/options"
)

// newDefaults returns the decoder of options, with a default configuration file.
func newDefaults(file string) *options.Defaults {
	return options.NewDefaults(file, extensions().Settings().Options()...)
}

// readDefaults returns the content of the default configuration file as JSON, "" without a file. The error is that of
// the first container that would be refused because of it, for each namespace. Not checked is whether directories and
// the cgroup for a shim exist, and criu.
func readDefaults(file string) (text string, err error) {
	all, text, err := newDefaults(file).All()
	for _, namespace := range slices.Sorted(maps.Keys(all)) {
		err = errors.Join(err, checkDefaults(all[namespace]))
	}
	return text, err
}

func checkDefaults(o options.Options) error {
	set, err := extensions().Settings().Parse(&specs.Spec{}, o, "namespace", "id")
	if err != nil {
		return err
	}
	if set.CPUSetSource.IsSet() {
		err = cpuset.CheckMode(cgroups.Mode(), set.CPUSetSource)
	}
	_, invalid := extensions().New(set.Values)
	return errors.Join(err, invalid)
}

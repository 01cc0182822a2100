// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/options"
)

// parseOptions reads the runtime options among what containerd sends at start. Messages of other types are left
// alone: containerd 2.3 sends extensions that are not options.
func parseOptions(list []*anypb.Any) (options.Options, error) {
	for _, a := range list {
		if options.Known(a.GetTypeUrl()) {
			return options.Decode(a)
		}
	}
	return options.Options{}, nil
}

// systemdEnv tells the daemon what CreateSandbox does not: the cgroup driver is systemd's, by the options that containerd
// gives start alone. The options of containers come with them.
const systemdEnv = "CONTAINERD_SHIM_SANDBOX_SYSTEMD_CGROUP"

func driverEnv(o options.Options) []string {
	if !o.SystemdCgroup {
		return nil
	}
	return []string{systemdEnv + "=1"}
}

// takeDriver reads what driverEnv told. Nothing that the daemon executes inherits it.
func takeDriver() (systemd bool, err error) {
	systemd = os.Getenv(systemdEnv) != ""
	return systemd, os.Unsetenv(systemdEnv)
}

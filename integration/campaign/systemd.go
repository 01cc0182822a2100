// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// withSystemd reports whether systemd manages this machine, as sd_booted(3) does. Then it makes the cgroups of all
// containers but those of pods.
func withSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// slice is the unit that the scopes of a worker's containers are in; empty without systemd.
func (e *Env) slice() string {
	if !e.systemd {
		return ""
	}
	return e.name + ".slice"
}

// cgroupOf is where a container is to be. Without systemd, it is where containerd's default is.
func (e *Env) cgroupOf(id string) []oci.SpecOpts {
	if !e.systemd {
		return nil
	}
	return []oci.SpecOpts{oci.WithCgroup(e.slice() + ":campaign:" + e.name + "-" + id)}
}

// runtime is the runtime without options, but for the one that systemd takes.
func (e *Env) runtime() client.NewContainerOpts {
	if !e.systemd {
		return client.WithRuntime(e.daemon.Env.Runtime, nil)
	}
	return client.WithRuntime(e.daemon.Env.Runtime, &runcoptions.Options{SystemdCgroup: true})
}

// scopes are those that systemd has of this worker.
func (e *Env) scopes() ([]string, error) {
	if !e.systemd {
		return nil, nil
	}
	out, err := exec.Command("systemctl", "list-units", "--all", "--plain", "--no-legend",
		"campaign-"+e.name+"-*.scope").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("systemctl list-units: %w: %s", err, out)
	}
	var units []string
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			units = append(units, fields[0])
		}
	}
	return units, nil
}

// stopSlice has systemd forget the slice, and all that is in it.
func (e *Env) stopSlice() error {
	if !e.systemd {
		return nil
	}
	out, err := exec.Command("systemctl", "stop", e.slice()).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("systemctl stop %s: %w: %s", e.slice(), err, out)
	}
	return err
}

// WhyNoLimits says why containers can have no limits on this machine. It is empty if they can.
func WhyNoLimits() string {
	if harness.CgroupMode() != "v2" {
		return ""
	}
	there, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	for _, name := range []string{"cpu", "memory", "pids"} {
		if err == nil && !slices.Contains(strings.Fields(string(there)), name) {
			return "this machine's cgroup v2 has no controller " + name
		}
	}
	return ""
}

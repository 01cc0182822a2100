// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"sandbox.internal/shim/integration/harness"
)

// Mix says how many of a thousand steps of a round are what, and how long its bursts are.
type Mix struct {
	Burst    int  // steps on a container that runs that are bursts of execs
	Batch    int  // steps that are batches of containers from beginning to end
	Shared   int  // of a thousand batches: all containers are in the pod of the bystanders
	Length   int  // execs of a burst and containers of a batch, at most
	Together int  // steps that have a companion
	Illegal  int  // steps that may be anything in any state
	Process  int  // faults: a process of a container is killed or stopped
	Stop     int  // faults: a shim or containerd is stopped for a while
	Shim     int  // faults: a shim is killed
	Daemon   int  // faults: containerd is killed, or restarted
	Upgrade  int  // steps that are upgrades of a shim, and steps in which there is one
	Pod      int  // steps that are pods through CRI
	Sleep    int  // steps on a container that runs that put it to sleep; of a hundred containers: they may
	Hostile  int  // of a thousand programs
	NoLimits bool // nothing of a container can be limited
}

// DefaultMix has about ten execs for each container, and one shim in fifty killed. Where nothing can have limits, it
// has no pods, to which CRI gives CPU shares, no updates, and no programs that need limits.
func DefaultMix() Mix {
	m := Mix{
		Burst: 200, Batch: 2, Shared: 500, Length: 20, Together: 60, Illegal: 60, Process: 20, Stop: 10, Shim: 8, Daemon: 2,
		Upgrade: 8, Pod: 3, Sleep: 30, Hostile: 60,
	}
	if WhyNoLimits() != "" {
		m.Pod, m.NoLimits = 0, true
	}
	return m
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

// String is the mix as Set reads it.
func (m *Mix) String() string {
	text, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Set changes the parts that JSON names: {"shim":20,"pod":0}.
func (m *Mix) Set(text string) error {
	if err := json.Unmarshal([]byte(text), m); err != nil {
		return fmt.Errorf("mix %q: want JSON like %s: %w", text, m, err)
	}
	return nil
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package execgroup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
)

func TestCanLimit_NamesWhatIsAbsent(t *testing.T) {
	c := cgroup.New(map[string]string{"pids": t.TempDir()})
	err := canLimit(c, &limit.Limits{WallTime: 1, CPUTime: 1, Memory: 1, Pids: 1, CPUs: 1, ReadBPS: 1, WriteBPS: 1})
	if !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("canLimit = %v, want failed precondition", err)
	}
	for name, controller := range map[string]string{
		"memory": "memory", "cpus": "cpu", "cpu-time": "cpuacct", "read-bps": "blkio", "write-bps": "blkio",
	} {
		want := fmt.Sprintf("limit %s: cgroup %s has no controller %s for execs", name, c, controller)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, which does not say %q", err, want)
		}
	}
	if err := canLimit(c, &limit.Limits{WallTime: 1, Pids: 1, Output: 1}); err != nil {
		t.Error(err)
	}
}

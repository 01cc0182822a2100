// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/limit"
)

func TestCanLimit_NamesWhatIsAbsent(t *testing.T) {
	c := cgroup.New(map[string]string{"pids": t.TempDir()})
	err := canLimit(c, &limit.Limits{WallTime: 1, CPUTime: 1, Memory: 1, Pids: 1})
	testx.WantError(t, err, errdefs.ErrFailedPrecondition,
		fmt.Sprintf("limit memory: cgroup %s has no controller memory for execs", c))
	err = canLimit(c, &limit.Limits{CPUTime: 1})
	testx.WantError(t, err, errdefs.ErrFailedPrecondition,
		fmt.Sprintf("limit cpu-time: cgroup %s has no controller cpuacct for execs", c))
	testx.Must(t, canLimit(c, &limit.Limits{WallTime: 1, Pids: 1, Output: 1}))
}

// Any number of programs may sleep uninterruptibly. The end of an exec must not take longer for each.
func TestRemove_TriesFewOfTheOccupiedAgain(t *testing.T) {
	const occupied = 20
	dir := t.TempDir()
	g := &execGroups{parent: cgroup.New(map[string]string{"pids": dir})}
	end := func(name string, files ...string) {
		path := filepath.Join(dir, name)
		testx.Must(t, os.Mkdir(path, 0o755))
		for _, file := range files { // no directory with one can be removed
			testx.Must(t, os.WriteFile(filepath.Join(path, file), nil, 0o600))
		}
		g.remove(&execGroup{Cgroup: cgroup.New(map[string]string{"pids": path})})
	}
	left := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		testx.Must(t, err)
		return names
	}
	for i := range occupied {
		end(fmt.Sprintf("occupied%d", i), "process")
	}
	for _, name := range left() {
		testx.Must(t, os.Remove(filepath.Join(name, "process")))
	}
	for i, want := range []int{occupied - triedAgain, occupied - 2*triedAgain, 0} {
		end(fmt.Sprintf("empty%d", i))
		if got := left(); len(got) != want {
			t.Errorf("after %d more have ended, %d are left, want %d: %q", i+1, len(got), want, got)
		}
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestRCUWarmup_LeavesTheProcessWhereItIs(t *testing.T) {
	before, err := os.ReadFile("/proc/self/cgroup")
	testx.Must(t, err)
	dir, err := OwnCgroup()
	testx.Must(t, err)
	members, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatalf("processes of the own cgroup: %v", err)
	}
	if pids := strings.Fields(string(members)); !slices.Contains(pids, strconv.Itoa(os.Getpid())) {
		t.Errorf("%s lists %q, want %d among them", dir, pids, os.Getpid())
	}
	synctest.Test(t, func(*testing.T) { // ends when the goroutines have
		var w RCUWarmup
		w.Start()
		w.Start()
	})
	after, err := os.ReadFile("/proc/self/cgroup")
	testx.Must(t, err)
	if string(after) != string(before) {
		t.Errorf("cgroups after = %q, want %q", after, before)
	}
}

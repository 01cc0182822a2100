// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

func TestRCUWarmup_LeavesTheProcessWhereItIs(t *testing.T) {
	before, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	members, err := os.ReadFile(ownProcs())
	if err != nil {
		t.Fatalf("processes of the own cgroup: %v", err)
	}
	if pids := strings.Fields(string(members)); !slices.Contains(pids, strconv.Itoa(os.Getpid())) {
		t.Errorf("%s lists %q, want %d among them", ownProcs(), pids, os.Getpid())
	}
	synctest.Test(t, func(*testing.T) { // ends when the goroutines have
		var w RCUWarmup
		w.Start()
		w.Start()
	})
	after, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Errorf("cgroups after = %q, want %q", after, before)
	}
}

func TestRCUWarmup_MakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cgroup.procs")
	moveSelf(path)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s where there was none: %v", path, err)
	}
}

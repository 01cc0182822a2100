// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
)

func TestAccount_CountsAProcessAndItsChildren(t *testing.T) {
	namespace := fmt.Sprintf("%saccount-%d", harness.NamespacePrefix, os.Getpid())
	defer func() {
		closeAccount(namespace)
		if err := (harness.Scope{Namespace: namespace, MountsIn: "/" + namespace}).Remove(); err != nil {
			t.Error(err)
		}
	}()
	// It computes when it is in the cgroup: half of it in a child.
	const burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
	cmd := exec.CommandContext(t.Context(), "busybox", "sh", "-c", fmt.Sprintf("read line; (%s); %s", burn, burn))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a, err := openAccount(namespace, cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration {
		t.Helper()
		d, err := a.used()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := used()
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	got, want := used()-before, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	// The start of the process is not in the account, and much less than the rest.
	if got < want*8/10 || got > want*12/10 || want < 20*time.Millisecond {
		t.Errorf("account: %v, rusage of the process and its child: %v", got, want)
	}
	if list := strings.Join(harness.Scope{Namespace: namespace, MountsIn: "/" + namespace}.Leaks(),
		"; "); !strings.Contains(list, shims) {
		t.Errorf("leaks %q, want the cgroup of the account", list)
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// needAppArmor skips the test, or fails it, where containerd finds no AppArmor (containerd pkg/apparmor).
func needAppArmor(t *testing.T) {
	t.Helper()
	enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err == nil {
		_, err = os.Stat("/sbin/apparmor_parser")
	}
	if err != nil || !strings.HasPrefix(string(enabled), "Y") {
		harness.Lacking(t, "apparmor", "a kernel with AppArmor, and /sbin/apparmor_parser")
	}
}

// By ctr, with the profile that containerd makes.
func TestAppArmor_ContainerAndItsExecsHaveTheDefaultProfile(t *testing.T) {
	needAppArmor(t)
	e := newEnv(t)
	profile := fmt.Sprintf("shim-test-%d", os.Getpid())
	t.Cleanup(func() {
		if err := os.WriteFile("/sys/kernel/security/apparmor/.remove", []byte(profile), 0); err != nil {
			t.Errorf("remove the profile: %v", err)
		}
	})
	output := func(cmd *exec.Cmd) string {
		t.Helper()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", cmd.Args, err, out)
		}
		return strings.ReplaceAll(string(out), "\r", "")
	}
	const probe = "exec 2>&1; cat /proc/self/attr/current /proc/sysrq-trigger; echo x >/proc/sys/vm/swappiness; id -u"
	want := profile + " (enforce)\ncat: can't open '/proc/sysrq-trigger': Permission denied\n" +
		"sh: can't create /proc/sys/vm/swappiness: Permission denied\n0\n"
	run := []string{
		"run", "--snapshotter", e.snapshotter, "--runtime", e.containerd.Env.Runtime, "--fifo-dir", e.containerd.Fifos,
		"--privileged", // so that nothing but the profile forbids what the probe tries
		"--apparmor-default-profile", profile,
	}
	image := e.image.Name()
	if got := output(e.ctr(append(run, "--rm", image, "c1", "sh", "-c", probe)...)); got != want {
		t.Errorf("the container wrote %q, want %q", got, want)
	}
	wantInit := want + profile + " (enforce)\n"
	if got := output(e.ctr(append(run, "--rm", "--annotation", annotationInit+"=true", image, "c3", "sh", "-c",
		probe+"; cat /proc/1/attr/current")...)); got != wantInit {
		t.Errorf("the container with an init wrote %q, want %q", got, wantInit)
	}
	output(e.ctr(append(run, "--detach", image, "c2", "sleep", "1000")...))
	task := []string{"task", "exec", "--fifo-dir", e.containerd.Fifos, "--exec-id"}
	if got := output(e.ctr(append(task, "e1", "c2", "sh", "-c", probe)...)); got != want {
		t.Errorf("the exec wrote %q, want %q", got, want)
	}
	inTerminal := e.ctr(append(task, "e2", "--tty", "c2", "sh", "-c", "'"+strings.ReplaceAll(probe, "'", `'\''`)+"'")...)
	command := strings.Join(inTerminal.Args, " ")
	inTerminal.Path, inTerminal.Args = "/usr/bin/script", []string{"script", "-qec", command, "/dev/null"}
	if got := output(inTerminal); !strings.Contains(got, want) { // ctr may say that it could not resize it
		t.Errorf("the exec with a terminal wrote %q, want %q in it", got, want)
	}
	output(e.ctr("task", "rm", "--force", "c2"))
	output(e.ctr("container", "rm", "c2"))
}

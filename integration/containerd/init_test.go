// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

const annotationInit = "io.containerd.sandbox.v1/init"

func reaped() oci.SpecOpts { return annotations(annotationInit, "true") }

func newInitEnv(t *testing.T) *env {
	t.Helper()
	harness.OursOnly(t, "an init of its own")
	if harness.AllExecsByLibcontainer() {
		t.Skip("SKIPPED: libcontainer starts no init")
	}
	return newEnv(t)
}

func TestInit_RunsTheProgramAsItsChild(t *testing.T) {
	letOthersIn(t)
	e := newInitEnv(t)
	user := oci.WithUserID(1000)
	noNewPrivileges := spec(func(s *oci.Spec) { s.Process.NoNewPrivileges = true })
	// The program is the second process, and leads a session; signals are as without an init.
	const script = `cat /proc/1/comm; tr '\0' ' ' </proc/1/cmdline | head -c 18; readlink /proc/1/exe
		echo $$ $PPID; cut -d ' ' -f 6 /proc/$$/stat; grep SigBlk /proc/$$/status
		rights() { grep -E 'Uid|Gid|Groups|Seccomp:|NoNewPrivs|Cap' /proc/$1/status; }
		test "$(rights 1)" = "$(rights $$)" && echo the same rights; exit 3`
	for i, tt := range []struct {
		name string
		opts []oci.SpecOpts
	}{
		{"a plain container", nil},
		{"a user", with(user)},
		{"no new privileges", with(noNewPrivileges)},
		{"a filter", with(seccomp.WithDefaultProfile())},
		{"a filter without new privileges", with(seccomp.WithDefaultProfile(), noNewPrivileges, user)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := e.run("c"+strconv.Itoa(i), config{opts: append(tt.opts, reaped())}, "sh", "-c", script)
			c.wantExit(3)
			want := "init\ninit /bin/sh sh -c/containerd-shim-sandbox-v1:launcher\n2 1\n2\nSigBlk:\t0000000000000000\nthe same rights\n"
			if got := c.out.String(); got != want {
				t.Errorf("the program prints %q, want %q; stderr %q", got, want, c.err)
			}
		})
	}
}

func TestInit_GivesItsChildTheTerminal(t *testing.T) {
	e := newInitEnv(t)
	keyboard, stdin := typed(e)
	c := e.run("c1", config{terminal: true, stdin: stdin, opts: with(reaped())}, "sh", "-c",
		// A child could lose the signal between its fork and its exec, and read one that comes right before its poll: so the
		// shell itself waits, and looks for a signal after each command.
		`trap 'echo interrupted; heard=1' INT; tty; echo ready >/dev/tty; until [ "$heard" ]; do :; done
		read -r line; echo "read: $line."; exit 4`)
	c.out.WaitFor(t, "ready")
	_, err := keyboard.Write([]byte{3}) // control-C, which the kernel makes a signal to the group in front
	e.must(err, "type control-C")
	c.out.WaitFor(t, "interrupted")
	e.typeLine(keyboard, "hello")
	c.out.WaitFor(t, "read: hello.")
	c.wantExit(4)
	if got := c.out.String(); !strings.HasPrefix(got, "/dev/pts/0\r\n") || strings.Count(got, "interrupted") != 1 {
		t.Errorf("output = %q, want the terminal, and one interruption", got)
	}
}

// libcontainer, which makes these containers, has no init.
func TestInit_IsRefusedWithUsersOrInAPIDNamespaceOfAnother(t *testing.T) {
	e := newInitEnv(t)
	first := e.run("c1", config{}, "sleep", "1000")
	join := oci.WithLinuxNamespace(specs.LinuxNamespace{
		Type: specs.PIDNamespace, Path: fmt.Sprintf("/proc/%d/ns/pid", first.Task.Pid()),
	})
	for id, tt := range map[string]struct {
		opt    oci.SpecOpts
		reason string
	}{
		"c2": {oci.WithUserNamespace(idMap, idMap), "user namespace"},
		"c3": {join, "PID, time or mount namespace of another"},
	} {
		_, err := e.tryCreate(id, config{opts: with(tt.opt, reaped())}, "true")
		want := "init: not possible with this process: " + tt.reason
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("create = %v, want a failed precondition: %s", err, want)
		}
	}
	first.kill()
}

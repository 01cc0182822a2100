// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
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
		new  []client.NewContainerOpts
	}{
		{"a plain container", nil, nil},
		{"a user", with(user), nil},
		{"no new privileges", with(noNewPrivileges), nil},
		{"a filter", with(seccomp.WithDefaultProfile()), nil},
		{"a filter without new privileges", with(seccomp.WithDefaultProfile(), noNewPrivileges, user), nil},
		{
			"users of its own", with(oci.WithUserNamespace(idMap, idMap)),
			[]client.NewContainerOpts{client.WithUserNSRemappedSnapshot("c5-root", e.image, idMap, idMap)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := e.run("c"+strconv.Itoa(i), config{opts: append(tt.opts, reaped()), new: tt.new}, "sh", "-c", script)
			c.wantExit(3)
			want := "init\ninit /bin/sh sh -c/containerd-shim-sandbox-v1:init\n2 1\n2\nSigBlk:\t0000000000000000\nthe same rights\n"
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
		// A child could lose the signal between its fork and its exec, so the shell itself waits.
		`trap 'echo interrupted' INT; tty; echo ready >/dev/tty; until read -r line; do :; done; echo "read: $line."; exit 4`)
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

// In the PID namespace of another container it is not the first process there, and reaps all the same.
func TestInit_InASharedPIDNamespace(t *testing.T) {
	e := newInitEnv(t)
	first := e.run("c1", config{}, "sleep", "1000")
	join := oci.WithLinuxNamespace(specs.LinuxNamespace{
		Type: specs.PIDNamespace, Path: fmt.Sprintf("/proc/%d/ns/pid", first.Task.Pid()),
	})
	c, err := e.tryCreate("c2", config{opts: with(join, reaped())}, "sh", "-c",
		"(sleep 0.01 &); tr '\\0' ' ' </proc/$PPID/comm; sleep 1; cat /proc/[0-9]*/stat | grep -c ') Z '; exit 6")
	if err != nil && strings.Contains(err.Error(), "PID namespace of another, before Linux 6.17") {
		first.kill()
		t.Skip("SKIPPED: the launcher needs Linux 6.17 for that, and the error says so")
	}
	e.must(err, "create")
	e.must(c.process.Start(e.ctx), "start")
	c.wantExit(6)
	if got := c.out.String(); got != "init\n0\n" {
		t.Errorf("the program prints %q, want its parent, an init, and no zombie", got)
	}
	first.kill()
}

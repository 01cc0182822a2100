// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// filter applies action to the making of directories and lets everything else pass.
func filter(action specs.LinuxSeccompAction, errno unix.Errno, change func(*specs.LinuxSeccomp)) oci.SpecOpts {
	return spec(func(s *oci.Spec) {
		ret := uint(errno)
		rule := specs.LinuxSyscall{Names: []string{"mkdir", "mkdirat"}, Action: action}
		if errno != 0 {
			rule.ErrnoRet = &ret
		}
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{rule}}
		if change != nil {
			change(s.Linux.Seccomp)
		}
	})
}

func TestSeccomp_FilterActsAsItsProfileSays(t *testing.T) {
	const mode = "sed -n 's/^Seccomp:.//p' /proc/self/status; "
	runRows(t, []row{
		{name: "no profile", opts: with(oci.WithSeccompUnconfined), script: mode, want: "0\n"},
		{
			name: "containerd's default profile", opts: with(seccomp.WithDefaultProfile()),
			script: mode + "mkdir /tmp/x && echo made; umount /proc 2>&1; true",
			want:   "2\nmade\numount: can't unmount /proc: Operation not permitted\n",
		},
		{
			name: "an error number of the profile's choice", opts: with(filter(specs.ActErrno, unix.ENOSPC, nil)),
			script: mode + "mkdir /tmp/x 2>&1; touch /tmp/y && echo touched",
			want:   "2\nmkdir: can't create directory '/tmp/x': No space left on device\ntouched\n",
		},
		{
			name:   "an error number without a choice",
			opts:   with(filter(specs.ActErrno, 0, nil)),
			script: mode + "mkdir /tmp/x 2>&1; true",
			want:   "2\nmkdir: can't create directory '/tmp/x': Operation not permitted\n",
		},
		{
			name: "death of the process", opts: with(filter(specs.ActKillProcess, 0, nil)),
			script: "mkdir /tmp/x; echo $?", want: "159\n", // 128 + SIGSYS
		},
		{
			name: "no new privileges, which is a different way into the kernel", opts: with(oci.WithNoNewPrivileges, oci.WithCapabilities(nil), oci.WithUserID(1000), filter(specs.ActErrno, unix.ENOSPC, nil)),
			script: mode + "mkdir /tmp/x 2>&1 | cut -d: -f3", want: "2\n No space left on device\n",
		},
	})
}

func TestSeccomp_ExecIsFilteredAsItsContainer(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: with(filter(specs.ActErrno, unix.ENOSPC, nil))}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "mkdir", "/tmp/x")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(1)
	if got := x.err.String(); !strings.Contains(got, "No space left on device") {
		t.Errorf("stderr = %q, want the error of the filter", got)
	}
	c.kill()
}

// Each container has a shim of its own. The second uses the file of the first; the third has another profile.
func TestSeccomp_AProfileIsCompiledOnce(t *testing.T) {
	harness.OursOnly(t, "filters are kept")
	if harness.AllExecsByLibcontainer() {
		t.Skip("SKIPPED: libcontainer keeps no filter")
	}
	e := newEnv(t)
	root := t.TempDir()
	cached := func() (names []string) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(root, ".seccomp", "*"))
		e.must(err, "list the cache")
		return names
	}
	var before os.FileInfo
	for i, id := range []string{"c1", "c2"} {
		c := e.run(id, config{
			opts: with(filter(specs.ActErrno, unix.ENOSPC, nil)),
			new:  []client.NewContainerOpts{client.WithRuntime(harness.Runtime(), &options.Options{Root: root})},
		}, "sh", "-c", "mkdir /tmp/x 2>&1; sed -n 's/^Seccomp:.//p' /proc/self/status; sleep 1000")
		c.out.WaitFor(t, "2\n")
		if got := c.out.String(); !strings.Contains(got, "No space left on device") {
			t.Errorf("%s: stdout = %q, want the error of the filter", id, got)
		}
		all := cached()
		if len(all) != 1 {
			t.Fatalf("%s: the cache has %q, want one file", id, all)
		}
		info, err := os.Stat(all[0])
		e.must(err, "look at the file")
		if i > 0 && !os.SameFile(before, info) {
			t.Errorf("%s: another file", id)
		}
		before = info
		defer c.kill()
	}
	other := e.run("c3", config{
		opts: with(filter(specs.ActErrno, unix.EDOM, nil)),
		new:  []client.NewContainerOpts{client.WithRuntime(harness.Runtime(), &options.Options{Root: root})},
	}, "sh", "-c", "mkdir /tmp/x 2>&1; sleep 1000")
	other.out.WaitFor(t, "Numerical argument out of domain")
	other.kill()
	if all := cached(); len(all) != 2 {
		t.Errorf("the cache has %q, want two files", all)
	}
}

func TestSeccomp_FilterCanAskAnAgent(t *testing.T) {
	e := newEnv(t)
	agent := newAgent(t, unix.EDOM)
	opts := with(filter(specs.ActNotify, 0, func(s *specs.LinuxSeccomp) {
		s.ListenerPath, s.ListenerMetadata = agent.path, "for the agent"
	}))
	c := e.run("c1", config{opts: opts}, "sh", "-c", "mkdir /tmp/x 2>&1; echo asked; sleep 1000")
	c.out.WaitFor(t, "asked")
	const want = "mkdir: can't create directory '/tmp/x': Numerical argument out of domain\n"
	if got := c.out.String(); got != want+"asked\n" {
		t.Errorf("stdout = %q, want the answer of the agent", got)
	}
	x := c.exec("e1", config{}, nil, "sh", "-c", "mkdir /tmp/x 2>&1; true")
	e.must(x.Start(e.ctx), "start e1")
	execPid := int(x.Pid())
	x.wantExit(0)
	if got := x.out.String(); got != want {
		t.Errorf("stdout of the exec = %q, want the answer of the agent", got)
	}
	pid := int(c.Task.Pid())
	c.kill()

	states := agent.stop()
	if len(states) != 2 {
		t.Fatalf("agent was told of %+v, want init and the exec", states)
	}
	for i, wantPid := range []int{pid, execPid} {
		s := states[i]
		if s.Pid != wantPid || s.State.Pid != pid || s.State.ID != "c1" || s.Metadata != "for the agent" ||
			s.Version == "" || !slices.Equal(s.Fds, []string{specs.SeccompFdName}) ||
			!strings.HasSuffix(s.State.Bundle, e.namespace+"/c1") {
			t.Errorf("agent was told %+v, want process %d of container c1, its bundle, and one descriptor", s, wantPid)
		}
	}
}

func TestSeccomp_FilterThatCannotBeSetUpIsRefused(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "no-agent")
	wantRefused(t, []refusal{
		{name: "an agent that is not there", words: []string{"seccomp", absent}, opts: with(filter(specs.ActNotify, 0, func(s *specs.LinuxSeccomp) { s.ListenerPath = absent }))},
		{name: "no agent", words: []string{"seccomp", "listenerPath"}, opts: with(filter(specs.ActNotify, 0, nil))},
		{name: "an action that does not exist", words: []string{"seccomp", "SCMP_ACT_PRAY"}, opts: with(filter("SCMP_ACT_PRAY", 0, nil))},
		{name: "an architecture that does not exist", words: []string{"SCMP_ARCH_ABACUS"}, opts: with(filter(specs.ActErrno, 0, func(s *specs.LinuxSeccomp) { s.Architectures = []specs.Arch{"SCMP_ARCH_ABACUS"} }))},
	})
}

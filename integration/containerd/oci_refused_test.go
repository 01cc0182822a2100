// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

// lacks skips a test of how the lack of a feature is reported, on a kernel that has it.
func lacks(t *testing.T, file, feature string) {
	t.Helper()
	if _, err := os.Stat(file); err == nil {
		t.Skipf("CANNOT RUN HERE: this is about a kernel without %s, and this one has it", feature)
	}
}

func TestCreate_FeatureThatTheKernelLacksIsNamed(t *testing.T) {
	t.Run("SELinux", func(t *testing.T) {
		lacks(t, "/sys/fs/selinux/enforce", "SELinux")
		wantRefused(t, []refusal{{
			name: "label", opts: with(oci.WithSelinuxLabel("system_u:system_r:container_t:s0")),
			words: []string{"selinux"},
		}})
	})
	t.Run("Intel RDT", func(t *testing.T) {
		lacks(t, "/sys/fs/resctrl/schemata", "resource control")
		wantRefused(t,
			[]refusal{{name: "class", opts: with(oci.WithRdt("shim-test", "L3:0=1", "")), words: []string{"intelRdt"}}})
	})
	t.Run("AppArmor", func(t *testing.T) {
		// A kernel that has it does not have the profile.
		wantRefused(t, []refusal{{
			name: "profile", opts: with(oci.WithApparmorProfile("shim-test-no-such-profile")),
			words: []string{"apparmor"},
		}})
	})
}

func TestExec_LabelThatTheKernelLacksIsRefused(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	for _, tt := range []struct {
		word, file string
		change     func(*specs.Process)
	}{
		{"selinux", "/sys/fs/selinux/enforce", func(p *specs.Process) {
			p.SelinuxLabel = "system_u:system_r:container_t:s0"
		}},
		{"apparmor", "", func(p *specs.Process) { p.ApparmorProfile = "shim-test-no-such-profile" }},
	} {
		t.Run(tt.word, func(t *testing.T) {
			if tt.file != "" {
				lacks(t, tt.file, tt.word)
			}
			x, err := c.tryExec("x-"+tt.word[:1], config{}, tt.change, "true")
			if err == nil {
				err = x.Start(e.ctx)
				_, _ = x.Delete(e.ctx) // it is the error that is looked at
			}
			wantError(t, err, nil, tt.word)
		})
	}
	c.kill()
}

func TestCreate_ImpossibleConfigurationIsRefusedByField(t *testing.T) {
	harness.OursOnly(t, "that such a configuration is an invalid argument before anything is made")
	arguments := func(args ...string) []oci.SpecOpts { return with(oci.WithProcessArgs(args...)) }
	mappings := func(second specs.LinuxIDMapping) []oci.SpecOpts {
		return with(oci.WithUserNamespace([]specs.LinuxIDMapping{idMap[0], second}, idMap))
	}
	wantRefused(t, []refusal{
		{
			name: "NUL in the program", opts: arguments("tr\x00ue"),
			words: []string{"args[0]"}, class: errdefs.ErrInvalidArgument,
		},
		{
			name: "NUL in an argument", opts: arguments("true", "a\x00b"),
			words: []string{"args[1]"}, class: errdefs.ErrInvalidArgument,
		},
		{
			name: "NUL in the environment", opts: with(oci.WithEnv([]string{"A=b\x00c"})),
			words: []string{"env"}, class: errdefs.ErrInvalidArgument,
		},
		{
			name: "NUL in the directory", opts: with(oci.WithProcessCwd("/tm\x00p")),
			words: []string{"cwd"}, class: errdefs.ErrInvalidArgument,
		},
		{
			name:  "users of the container mapped twice",
			opts:  mappings(specs.LinuxIDMapping{ContainerID: 100, HostID: 400000, Size: 10}),
			words: []string{"uidMappings"}, class: errdefs.ErrInvalidArgument,
		},
		{
			name:  "users of the host mapped twice",
			opts:  mappings(specs.LinuxIDMapping{ContainerID: 70000, HostID: mapped + 100, Size: 10}),
			words: []string{"uidMappings"}, class: errdefs.ErrInvalidArgument,
		},
	})
}

func TestCreate_RefusalNamesTheField(t *testing.T) {
	tooMuch := 5000
	wantRefused(t, []refusal{
		{
			name:  "a score that the kernel does not know",
			opts:  with(spec(func(s *oci.Spec) { s.Process.OOMScoreAdj = &tooMuch })),
			words: []string{"oom"},
		},
		{
			name:  "a scheduler that does not exist",
			opts:  with(spec(func(s *oci.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: "SCHED_LOTTERY"} })),
			words: []string{"SCHED_LOTTERY"},
		},
		{
			name: "a class of input and output that does not exist",
			opts: with(spec(func(s *oci.Spec) {
				s.Process.IOPriority = &specs.LinuxIOPriority{Class: "IOPRIO_CLASS_SOON"}
			})),
			words: []string{"IOPRIO_CLASS_SOON"},
		},
		{
			name:  "a personality that does not exist",
			opts:  with(spec(func(s *oci.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: "LINUX8"} })),
			words: []string{"LINUX8"},
		},
		{
			name: "clocks of a time namespace that there is not",
			opts: with(spec(func(s *oci.Spec) {
				s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1}}
			})),
			words: []string{"time namespace"},
		},
	})
}

func TestExec_ThatNoContainerCanRunIsRefused(t *testing.T) {
	harness.OursOnly(t, "that such an exec is an invalid argument")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	for _, tt := range []struct {
		name   string
		change func(*specs.Process)
		word   string
	}{
		{"no arguments", func(p *specs.Process) { p.Args = nil }, "args"},
		{"no program", func(p *specs.Process) { p.Args = []string{""} }, "args[0]"},
		{"NUL in an argument", func(p *specs.Process) { p.Args = []string{"echo", "a\x00b"} }, "args[1]"},
		{"NUL in the environment", func(p *specs.Process) { p.Env = []string{"A=b\x00c"} }, "env"},
		{"a relative directory", func(p *specs.Process) { p.Cwd = "tmp" }, "cwd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, err := c.tryExec("e1", config{}, tt.change, "true")
			if err == nil {
				err = x.Start(e.ctx)
				_, _ = x.Delete(e.ctx) // it is the error that is looked at
			}
			wantError(t, err, errdefs.ErrInvalidArgument, tt.word)
		})
	}
	x := c.exec("after", config{}, nil, "true")
	e.must(x.Start(e.ctx), "start after")
	x.wantExit(0)
	c.kill()
}

func TestMessage_OfTheWrongTypeIsRefused(t *testing.T) {
	harness.OursOnly(t, "that it looks at the type of a message")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	const prefix = "types.containerd.io/opencontainers/runtime-spec/1/"
	for _, tt := range []struct {
		name string
		any  *anypb.Any
		word string
	}{
		{"another type", &anypb.Any{TypeUrl: prefix + "Spec", Value: []byte("{}")}, prefix + "Spec"},
		{"no type", &anypb.Any{Value: []byte("{}")}, "type"},
		{"not what the type says", &anypb.Any{TypeUrl: prefix + "?", Value: []byte("{")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			as := func(name string) *anypb.Any {
				return &anypb.Any{TypeUrl: strings.Replace(tt.any.GetTypeUrl(), "?", name, 1), Value: tt.any.GetValue()}
			}
			_, err := e.client.TaskService().Exec(e.ctx,
				&tasks.ExecProcessRequest{ContainerID: "c1", ExecID: "e1", Spec: as("Process")})
			wantError(t, errgrpc.ToNative(err), errdefs.ErrInvalidArgument, tt.word)
			_, err = e.client.TaskService().Update(e.ctx,
				&tasks.UpdateTaskRequest{ContainerID: "c1", Resources: as("LinuxResources")})
			wantError(t, errgrpc.ToNative(err), errdefs.ErrInvalidArgument, tt.word)
		})
	}
	_, err := e.tryCreate("c2", config{new: []client.NewContainerOpts{client.WithRuntime(e.containerd.Env.Runtime,
		&specs.LinuxResources{})}}, "true")
	wantError(t, err, nil, "LinuxResources")
	c.kill()
}

func TestCreate_TakesALargeConfiguration(t *testing.T) {
	e := newEnv(t)
	large := strings.Repeat("x", 2*mib)
	c := e.run("c1", config{opts: with(oci.WithAnnotations(map[string]string{"large": large}))}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "echo", "hello")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	if got := x.out.String(); got != "hello\n" {
		t.Errorf("stdout of the exec = %q, want hello", got)
	}
	// One that no message holds is refused, and harms nothing.
	_, err := c.tryExec("e2", config{},
		func(p *specs.Process) { p.Env = []string{fmt.Sprintf("A=%s%s%s", large, large, large)} }, "true")
	wantError(t, err, errdefs.ErrResourceExhausted)
	_, err = c.Status(e.ctx)
	e.must(err, "status after the large message")
	c.kill()
}

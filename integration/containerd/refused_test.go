// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

// A refusal is one sentence that names field and value. The tables of pkg/settings, pkg/options, pkg/resources, pkg/task
// and pkg/ociruntime have all of them; this one has some of each kind, for containers and execs, through containerd.
func TestRefused_InOneSentenceThatNamesTheField(t *testing.T) {
	harness.OursOnly(t, "that its errors are the reason alone")
	const prefix = "io.containerd.sandbox.v1/"
	const invalid, failed = codes.InvalidArgument, codes.FailedPrecondition
	set := func(name, value string) func(*oci.Spec) {
		return func(s *oci.Spec) { s.Annotations = map[string]string{prefix + name: value} }
	}
	bind := func(source, destination string) func(*oci.Spec) {
		return func(s *oci.Spec) {
			s.Mounts = append(s.Mounts,
				specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"bind"}})
		}
	}
	full := publicDir(t)
	e := newEnv(t)
	e.must(os.WriteFile(filepath.Join(full, "file"), nil, 0o600), "write")
	e.allow("host-rootfs", "listen", "pid-file", "verdict-file", "cpuset.source")
	c := e.run("c1", config{opts: with(inOneShim)}, "sleep", "1000")
	for id, tt := range map[string]struct {
		program string
		change  func(*oci.Spec)
		want    string // … stands for any text
		exec    bool   // gives the same error
		class   codes.Code
	}{
		"absent":      {"nosuch", nil, `exec: "nosuch": executable file not found in $PATH`, true, invalid},
		"no-file":     {"/no/such", nil, `exec: "/no/such": stat /no/such: no such file or directory`, true, invalid},
		"nul":         {"tr\x00ue", nil, `…must not contain NUL`, true, invalid},
		"no-argument": {"", func(s *oci.Spec) { s.Process.Args = nil }, "…args…", true, invalid},
		"profile":     {"", func(s *oci.Spec) { s.Process.ApparmorProfile = "shim-test-none" }, "…pparmor…", true, codes.OK},
		"cwd":         {"", func(s *oci.Spec) { s.Process.Cwd = "/proc/version" }, "mkdir /proc/version: not a directory", false, codes.OK},
		"mount":       {"", bind("/no/such", "/mnt"), "failed to fulfil mount request: open /no/such: no such file or directory", false, codes.OK},
		"file":        {"", bind("/etc/passwd", "/bin"), `error mounting "/etc/passwd" to rootfs at "/bin": …`, false, codes.OK},
		"device":      {"", func(s *oci.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "x"}} }, `config.json: invalid device type "x"`, false, invalid},
		"sysctl":      {"", func(s *oci.Spec) { s.Linux.Sysctl = map[string]string{"net.nope": "1"} }, `linux.sysctl: open sysctl net.nope file: …`, false, invalid},
		"hook":        {"", func(s *oci.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/no/such"}}} }, "error running createRuntime hook #0: fork/exec /no/such: no such file or directory", false, codes.OK},
		"agent": {"", func(s *oci.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_PRAY"}
		}, "…SCMP_ACT_PRAY is not a valid action for seccomp", false, invalid},
		"stop-signal": {"", set("stop-signal", "SIGNONE"), `…stop-signal "SIGNONE"…`, false, invalid},
		"exec-limits": {"", set("exec-limits", "wall=1s"), `…exec-limits "wall=1s": must be off, on, or a list of name=value…`, false, invalid},
		"pid-file":    {"", set("pid-file", full+"/file"), `…pid-file "` + full + `/file"…`, false, invalid},
		"host-rootfs": {"", set("host-rootfs", "usr"), `…host-rootfs…"usr"…host[:container][:ro|:rw]…`, false, invalid},
		"init":        {"", set("init", "tini"), `…init…"tini"…true or false…`, false, invalid},
		"listen":      {"", set("listen", "web"), `…listen…"web": must be [NAME=]tcp://IP:PORT…`, false, invalid},
		"address":     {"", set("listen", "tcp://192.0.2.1:80"), "…listen…tcp://192.0.2.1:80…cannot assign requested address…", false, failed},
		"listen-path": {"", set("listen", "unix:///no/s"), "…listen…unix:///no/s…no such file…", false, failed},
		"init-by-libcontainer": {"", func(s *oci.Spec) {
			set("init", "true")(s)
			s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
		}, "…init: not possible with this process…personality…", false, failed},
	} {
		check := func(what string, err error) {
			t.Helper()
			got := strings.TrimPrefix(fmt.Sprint(err), "failed to create shim task: ")
			if !matches(got, tt.want) {
				t.Errorf("%s: %s = %q, want %q", id, what, err, tt.want)
			}
			if code := status.Code(errgrpc.ToGRPC(err)); tt.class != codes.OK && code != tt.class {
				t.Errorf("%s: %s = %v, of class %v, want %v", id, what, err, code, tt.class)
			}
		}
		change := func(s *oci.Spec) {
			if tt.change != nil {
				tt.change(s)
			}
		}
		program := cmp.Or(tt.program, "true")
		_, err := e.tryCreate(id, config{opts: with(spec(change), inOneShim)}, program)
		check("run", err)
		if !tt.exec {
			continue
		}
		x, err := c.tryExec("x-"+id, config{}, func(p *specs.Process) { change(&oci.Spec{Process: p}) }, program)
		if err == nil {
			err = x.Start(e.ctx)
			_, _ = x.Delete(e.ctx) // it is the error that is looked at
		}
		check("exec", err)
	}
	// What comes by other ways than the configuration.
	_, err := e.tryCreate("rootfs", config{rootfs: full, opts: with(spec(set("host-rootfs", "default")))}, "true")
	wantError(t, err, errdefs.ErrInvalidArgument, "root.path", full, "empty directory")
	_, err = e.tryCreate("option", config{new: withOptions(e, "StopTimeout = 'soon'")}, "true")
	wantError(t, err, errdefs.ErrInvalidArgument, "StopTimeout", `"soon"`, "10s")
	other := client.WithRuntime(e.containerd.Env.Runtime, &specs.LinuxResources{})
	_, err = e.tryCreate("options", config{new: []client.NewContainerOpts{other}}, "true")
	wantError(t, err, nil, "LinuxResources")
	_, err = c.tryExec("limits", config{}, func(p *specs.Process) { p.Env = []string{"SANDBOX_LIMIT_PIDS=5"} }, "true")
	wantError(t, err, errdefs.ErrInvalidArgument, `SANDBOX_LIMIT_PIDS "5": needs the setting exec-limits`)
	err = c.Update(e.ctx, client.WithResources(&specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(999))}}))
	wantError(t, err, errdefs.ErrInvalidArgument, "linux.resources.cpu.quota 999: must be at least 1000 µs")
	_, err = e.client.TaskService().Exec(e.ctx, &tasks.ExecProcessRequest{
		ContainerID: "c1", ExecID: "e1", Spec: &anypb.Any{TypeUrl: "example.com/Spec", Value: []byte("{}")},
	})
	wantError(t, errgrpc.ToNative(err), errdefs.ErrInvalidArgument, "example.com/Spec")
	if !unified() {
		_, err = e.tryCreate("cpuset", config{opts: with(spec(set("cpuset.source", "parent")))}, "true")
		wantError(t, err, errdefs.ErrFailedPrecondition, "cpuset.source", "cgroup v2")
	}

	c.runExec("after", "true")
	c.kill()
	e.waitEvents("c1", "exec-added after | exec-start after | exit after | exit c1 137")
	text := e.events.Text("c1")
	if strings.Count(text, "exec-start") != 1 || strings.Count(text, "exit x") != 0 {
		t.Errorf("events = %q, want no start and no exit of an exec that did not start", text)
	}
}

// matches reports whether text is pattern, in which … stands for any text.
func matches(text, pattern string) bool {
	parts := strings.Split(pattern, "…")
	for i, part := range parts {
		at := strings.Index(text, part)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return text == "" || parts[len(parts)-1] == ""
}

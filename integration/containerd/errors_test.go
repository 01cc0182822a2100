// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// noProgram is one that no image has.
const noProgram = "/no/such/program"

func TestError_ClassReachesTheClientOnce(t *testing.T) { testErrors(newEnv(t)) }

// testErrors looks at what clients in Go get, as Docker is.
func testErrors(e *env) {
	want := func(what string, err, class error, words ...string) {
		e.Helper()
		if err == nil {
			e.Errorf("%s = nil, want an error with %q", what, words)
			return
		}
		if harness.Runtime() == harness.Ours && !errors.Is(err, class) {
			e.Errorf("%s = %v, of class %v, want %v", what, err, errdefs.Resolve(err), class)
		}
		harness.WantClassOnce(e, what, err.Error(), class)
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				e.Errorf("%s = %v, want %q in it", what, err, word)
			}
		}
	}
	bad, err := e.tryCreate("bad", config{}, noProgram)
	if err == nil { // a runtime may find out when it starts the program
		err = bad.process.Start(e.ctx)
		defer bad.delete()
	}
	want("container of an absent program", err, errdefs.ErrInvalidArgument, noProgram, "no such file or directory")

	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("x1", config{}, nil, noProgram)
	want("exec of an absent program", x.Start(e.ctx), errdefs.ErrInvalidArgument, noProgram,
		"no such file or directory")
	if _, err := x.Delete(e.ctx); err != nil && !errdefs.IsNotFound(err) {
		e.Errorf("Delete after a failed Start = %v", err)
	}
	if harness.Runtime() == harness.Ours { // the runc shim resumes what runs
		want("resume of what is not paused", c.Resume(e.ctx), errdefs.ErrFailedPrecondition, "cannot resume")
	}
	wantStatus(c, client.Running)
	c.kill()
}

func TestError_OfAStartIsOneSentence(t *testing.T) {
	harness.OursOnly(t, "that its errors are the reason alone")
	bind := func(source, destination string) func(*oci.Spec) {
		return func(s *oci.Spec) {
			s.Mounts = append(s.Mounts,
				specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"bind"}})
		}
	}
	limit := func(soft, hard uint64) func(*oci.Spec) {
		return func(s *oci.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: soft, Hard: hard}}
		}
	}
	score := 1001
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	for id, tt := range map[string]struct {
		program string
		change  func(*oci.Spec)
		want    string // a prefix, if it ends in …
		exec    bool   // gives the same error
	}{
		"absent":     {"nosuch", nil, `exec: "nosuch": executable file not found in $PATH`, true},
		"no-file":    {"/no/such", nil, `exec: "/no/such": stat /no/such: no such file or directory`, true},
		"no-program": {"/proc/version", nil, `exec: "/proc/version": permission denied`, true},
		"directory":  {"/bin", nil, `exec: "/bin": is a directory`, true},
		"limit":      {"", limit(2, 1), "process.rlimits[0].soft 2 of RLIMIT_NOFILE: must be at most hard, which is 1", true},
		"cwd":        {"", func(s *oci.Spec) { s.Process.Cwd = "/proc/version" }, "mkdir /proc/version: not a directory", false},
		"score":      {"", func(s *oci.Spec) { s.Process.OOMScoreAdj = &score }, "config.json: process.oomScoreAdj 1001: must be from -1000 to 1000", false},
		"mount":      {"", bind("/no/such", "/mnt"), "failed to fulfil mount request: open /no/such: no such file or directory", false},
		"file":       {"", bind("/etc/passwd", "/bin"), `error mounting "/etc/passwd" to rootfs at "/bin": …`, false},
		"device":     {"", func(s *oci.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "x"}} }, `config.json: invalid device type "x"`, false},
		"sysctl":     {"", func(s *oci.Spec) { s.Linux.Sysctl = map[string]string{"net.nope": "1"} }, `linux.sysctl["net.nope"] "1": open sysctl net.nope file: …`, false},
		"hook":       {"", func(s *oci.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/no/such"}}} }, "error running createRuntime hook #0: fork/exec /no/such: no such file or directory", false},
		"own-init":   {"nosuch", func(s *oci.Spec) { s.Annotations = map[string]string{annotationInit: "true"} }, `exec: "nosuch": executable file not found in $PATH`, false},
	} {
		check := func(what string, err error) {
			t.Helper()
			got := strings.TrimPrefix(fmt.Sprint(err), "failed to create shim task: ")
			start, more := strings.CutSuffix(tt.want, "…")
			if !strings.HasPrefix(got, start) || !more && got != start {
				t.Errorf("%s: %s = %q, want %q", id, what, err, tt.want)
			}
		}
		program := cmp.Or(tt.program, "true")
		var opts []oci.SpecOpts
		if tt.change != nil {
			opts = with(spec(tt.change))
		}
		_, err := e.tryCreate(id, config{opts: opts}, program)
		check("run", err)
		if !tt.exec {
			continue
		}
		x, err := c.tryExec("x-"+id, config{}, func(p *specs.Process) {
			if tt.change != nil {
				tt.change(&oci.Spec{Process: p})
			}
		}, program)
		if err == nil {
			err = x.Start(e.ctx)
			_, _ = x.Delete(e.ctx) // it is the error that is looked at
		}
		check("exec", err)
	}
	c.kill()
}

// ctr is a command of ctr's, not yet run.
func (e *env) ctr(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(e.ctx, filepath.Join(e.containerd.Env.Tools, "ctr"), args...)
	cmd.Env = append(os.Environ(), "CONTAINERD_ADDRESS="+e.containerd.Address, "CONTAINERD_NAMESPACE="+e.namespace)
	return cmd
}

func TestError_CtrRunPrintsTheClassOnce(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	ctr := func(args ...string) string {
		t.Helper()
		out, err := e.ctr(args...).CombinedOutput()
		if err == nil {
			t.Errorf("ctr %q = nil, want an error", args)
		}
		_, message, _ := strings.Cut(string(out), "ctr: ") // warnings of containerd's may come before
		return message
	}
	for what, printed := range map[string]string{
		"ctr run": ctr("run", "--rm", "--snapshotter", e.snapshotter, "--runtime", e.containerd.Env.Runtime,
			"--fifo-dir", e.containerd.Fifos, e.image.Name(), "bad", noProgram),
		"ctr task exec": ctr("task", "exec", "--exec-id", "x1", "--fifo-dir", e.containerd.Fifos, "c1", noProgram),
	} {
		harness.WantClassOnce(t, what, printed, errdefs.ErrInvalidArgument)
		if strings.Count(printed, noProgram+`"`) == 0 || !strings.Contains(printed, "no such file or directory") {
			t.Errorf("%s printed %q, want the program and the reason", what, printed)
		}
		if lines := strings.Count(printed, "\n"); lines != 1 {
			t.Errorf("%s printed %q, %d lines, want one", what, printed, lines)
		}
	}
	c.kill()
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

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
		want("resume of what is not paused", c.Resume(e.ctx), errdefs.ErrFailedPrecondition, "c1")
	}
	wantStatus(c, client.Running)
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

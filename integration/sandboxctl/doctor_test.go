// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"fmt"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// withCRI is a configuration of containerd 2 with the table of a handler, whose CRI plugin is not loaded: nothing listens
// on the machine's ports.
func withCRI(runtimeType, more string) func(*harness.Containerd) []byte {
	return func(c *harness.Containerd) []byte {
		return fmt.Appendf(nil, `version = 3
root = %q
state = %q
disabled_plugins = [%s, "io.containerd.nri.v1.nri", "io.containerd.cri.v1.images", "io.containerd.podsandbox.controller.v1.podsandbox"]
[grpc]
  address = %q
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = %q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.mine]
  runtime_type = %q
%s`, filepath.Join(c.Dir, "root"), c.State, harness.UnusedPlugins, c.Address, c.Sockets, runtimeType, more)
	}
}

func TestDoctor_ANodeWithAContainer(t *testing.T) {
	e := newPatient(t, withCRI(harness.Ours, ""))
	e.run("lives", harness.Ours, nil)
	pid := e.shim("lives")
	r := e.examine(status(t, e))
	e.want(r, "containerd", "ok", fmt.Sprint("pid ", e.Pid()))
	e.want(r, "containerd-version", "ok", e.Version)
	e.want(r, "handlers", "ok", "mine")
	e.want(r, "shim-binary", "ok", e.Env.Shim)
	e.want(r, "kernel-features", "ok", "pidfd_open")
	e.wantNothingLeft(r)
	if !harness.Alive(pid) {
		t.Error("the shim was ended, whose container runs")
	}
}

// status is that with which doctor ends on this machine, of which other things may be wrong than what a test breaks.
func status(t *testing.T, e *env) int {
	t.Helper()
	r := e.examine(-1)
	if r.Status == "failure" {
		return 2
	}
	return 0
}

func TestDoctor_StatusIsForScripts(t *testing.T) {
	e := newPatient(t, withCRI(harness.Ours, "sandboxer = \"podsandbox\"\noptions = {NoNewKeyring = true}\n"))
	r := e.examine(-1)
	e.want(r, "handlers", "warning", "table of options")
	if r.Status == "failure" {
		t.Skipf("SKIPPED: something else is wrong with this machine: %+v", r)
	}
	e.examine(0)
	e.examine(1, "--strict")
	e.must(e.Kill())
	e.examine(2)
}

// A containerd that is stopped accepts connections and answers none.
func TestDoctor_ContainerdHangs(t *testing.T) {
	e := newPatient(t, nil)
	harness.Stop(t, e.Pid())
	e.want(e.examine(2), "containerd", "failure", "does not answer")
}

func TestDoctor_TheKernelRefusesACall(t *testing.T) {
	e := newPatient(t, nil)
	for _, call := range []string{"openat2", "clone3", "pidfd_open"} {
		i := harness.Inject(t, harness.Fault{Call: call, Err: "ENOSYS"})
		e.want(e.examineBy(i.Command(e.doctor("-o", "json")...), 2), "kernel-features", "failure", call)
	}
	i := harness.Inject(t, harness.Fault{Call: "mount_setattr", Err: "ENOSYS"})
	e.want(e.examineBy(i.Command(e.doctor("-o", "json")...), -1), "kernel-features", "warning", "recursive read-only")
}

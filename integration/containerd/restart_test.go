// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

func TestRestart_ContainersDoNotNotice(t *testing.T) { testRestart(t, shared) }

// testRestart stops and starts others of the release of c.
func testRestart(t *testing.T, c *harness.Containerd) {
	t.Helper()
	for _, tt := range []struct {
		name string
		stop func(*harness.Containerd) error
	}{
		{"stopped by its service manager", (*harness.Containerd).Stop},
		{"killed", (*harness.Containerd).Kill},
	} {
		t.Run(tt.name, func(t *testing.T) { restart(newEnvOn(t, startContainerd(t, c.Env)), tt.stop) })
	}
}

func restart(e *env, stop func(*harness.Containerd) error) {
	e.Helper()
	talker := e.run("talker", config{}, "sh", "-c", `i=0; while :; do echo "line $i"; i=$((i+1)); usleep 5000; done`)
	keyboard, stdin := typed(e)
	x := talker.startExec("reader", config{stdin: stdin}, nil, "sh", "-c",
		`echo ready; read -r line; echo "got $line"; exit 5`)
	x.out.WaitFor(e, "ready")
	victim := e.run("victim", config{}, "sleep", "1000")
	talker.out.WaitFor(e, "line 10\n")

	e.must(stop(e.containerd), "stop containerd")
	lines := strings.Count(talker.out.String(), "\n")
	e.must(unix.Kill(int(victim.Task.Pid()), unix.SIGKILL), "kill the victim's process")
	talker.out.WaitFor(e, fmt.Sprintf("line %d\n", lines+20)) // output goes on without containerd
	e.typeLine(keyboard, "hello")
	x.out.WaitFor(e, "got hello")
	e.must(e.containerd.Start(e.ctx), "start containerd again")
	e.subscribe() // the former subscription ended with the former containerd

	talkerAgain := e.reload("talker")
	if status := talkerAgain.status("talker"); status.Status != client.Running {
		e.Errorf("talker = %+v, want running", status)
	}
	reader, err := talkerAgain.LoadProcess(e.ctx, "reader", nil)
	e.must(err, "load reader")
	readerStatus, err := reader.Status(e.ctx)
	e.must(err, "status of reader")
	if readerStatus.Status != client.Stopped || readerStatus.ExitStatus != 5 {
		e.Errorf("reader = %+v, want stopped with 5", readerStatus)
	}

	// The old handles work on: their fifos belong to the client, which did not restart.
	x.delete()
	after := talkerAgain.runExec("after", "echo", "again")
	if got := after.out.String(); got != "again\n" {
		e.Errorf("exec after the restart wrote %q", got)
	}
	e.must(talkerAgain.process.Kill(e.ctx, unix.SIGKILL), "kill talker")
	if got := talkerAgain.exit(); got != 137 {
		e.Errorf("exit status of talker = %d, want 137", got)
	}
	talker.delete()
	e.waitEvents("talker", "exit talker 137 | delete talker")
	// The exit of reader was sent while nobody listened, or has come since.
	for _, exit := range []string{"exit talker 137", "exit reader 5"} {
		if text := e.events.Text("talker"); strings.Count(text, exit) > 1 {
			e.Errorf("events = %q, want %q once", text, exit)
		}
	}
	e.wantEnded(victim)
	wantConsecutive(e, talker.out.String())
}

// The client of the Create is gone with containerd. The next one deletes what comes of it.
func TestRestart_DuringACreateLeavesNothing(t *testing.T) {
	harness.OursOnly(t, "a Create whose client is gone")
	e := newEnvOn(t, startContainerd(t, shared.Env))
	gate := harness.NewGate(t, publicDir(t))
	created := make(chan error, 1)
	go func() { // ends with containerd
		_, err := e.tryCreate("c1", gated(gate, "createRuntime"), "true")
		created <- err
	}()
	gate.WaitReached()
	e.must(e.containerd.Kill(), "kill containerd")
	if err := <-created; err == nil {
		t.Error("the create has succeeded")
	}
	logStart := e.containerd.LogSize()
	released := make(chan error, 1)
	go func() { // ends once containerd has asked
		released <- harness.Poll(func() error {
			if !strings.Contains(e.containerd.LogFrom(logStart), "cleaning leaked shim process") {
				return errors.New("containerd has not found out that there is no task")
			}
			gate.Open()
			return nil
		})
	}()
	e.must(e.containerd.Start(e.ctx), "start containerd again")
	e.must(<-released, "let the create go on")
	e.must(harness.Poll(func() error {
		if shims := harness.Shims(e.namespace, "c1"); len(shims) > 0 {
			return fmt.Errorf("there is a shim: %v", shims)
		}
		return nil
	}), "wait for the end of the shim")
}

// wantEnded checks what has become of a container whose only process died while containerd was away.
func (e *env) wantEnded(t *task) {
	e.Helper()
	if harness.Runtime() == harness.Ours || strings.HasPrefix(e.containerd.Version, "1.6.") {
		again := e.reload(t.ID())
		if status := again.status(t.ID()); status.Status != client.Stopped || status.ExitStatus != 137 {
			e.Errorf("task %s after the restart = %+v, want stopped with 137", t.ID(), status)
		}
		t.delete()
		return
	}
	// From 1.7 on, containerd ends a shim that it loads and that tells no process, and has its binary remove the rest.
	if _, err := t.container.Task(e.ctx, nil); !errors.Is(err, errdefs.ErrNotFound) {
		e.Errorf("task %s after the restart: %v, want not found", t.ID(), err)
	}
	t.closeIO()
}

func ownContainerd(t *testing.T) *harness.Containerd {
	t.Helper()
	return startContainerd(t, shared.Env)
}

// startContainerd starts a containerd of other programs than the shared one's; it ends with the test.
func startContainerd(t *testing.T, programs harness.Env) *harness.Containerd {
	t.Helper()
	c, err := harness.NewContainerd(programs)
	harness.Must(t, err)
	harness.AtEnd(t, c.Close)
	if err := c.Start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, c.LogFrom(0))
	}
	return c
}

// reload asks containerd for a container that an earlier one started.
func (e *env) reload(id string) *task {
	e.Helper()
	container, err := e.client.LoadContainer(e.ctx, id)
	e.must(err, "load container "+id)
	loaded, err := container.Task(e.ctx, nil)
	e.must(err, "load task "+id)
	t := &task{
		Task: loaded, container: container,
		process: process{Process: loaded, e: e, out: &harness.Buffer{}, err: &harness.Buffer{}},
	}
	t.exited, err = loaded.Wait(e.ctx)
	e.must(err, "wait for "+id)
	return t
}

func (t *task) status(id string) client.Status {
	t.e.Helper()
	status, err := t.Status(t.e.ctx)
	t.e.must(err, "status of "+id)
	return status
}

// wantConsecutive checks that the lines "line 0", "line 1" and so on are all there, once each and in order.
func wantConsecutive(tb testing.TB, text string) {
	tb.Helper()
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if want := fmt.Sprintf("line %d", i); line != want {
			if i == strings.Count(text, "\n") {
				return // the process was killed in the middle of its last line
			}
			tb.Errorf("output has %q where %q should be", line, want)
			return
		}
	}
}

func TestShim_KilledIsCleanedUpAfter(t *testing.T) { testKilledShim(t, shared) }

func testKilledShim(t *testing.T, on *harness.Containerd) {
	t.Helper()
	for _, tt := range []struct {
		name  string
		start bool
		use   func(*env, *task)
	}{
		{"container only created", false, func(*env, *task) {}},
		{"container runs", true, func(*env, *task) {}},
		{"container is paused", true, func(e *env, c *task) { e.must(c.Pause(e.ctx), "pause") }},
		{"execs run", true, func(e *env, c *task) {
			for _, id := range []string{"e1", "e2"} {
				x := c.startExec(id, config{}, nil, "sh", "-c", "sleep 1000 & echo ready; wait")
				x.out.WaitFor(e, "ready")
				e.Cleanup(x.closeIO)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnvOn(t, on)
			c := e.create("c1", config{}, "sh", "-c", "sleep 1000 & wait")
			if tt.start {
				e.must(c.process.Start(e.ctx), "start")
			}
			tt.use(e, c)
			e.must(unix.Kill(e.shim("c1"), unix.SIGKILL), "kill the shim")
			e.waitEvents("c1", "exit c1 137 | delete c1")
			if _, err := c.Task.Delete(e.ctx); err == nil {
				t.Error("Delete of a task whose shim is gone = nil, want not found")
			}
			c.closeIO()
		})
	}
}

// withDefaults runs containerd, and its shims, where the directory of the default configuration file is another:
// containerd --config FILE. No option: --version.
const withDefaults = `#!/bin/sh
set -e
[ "$1" = --config ] || exec %[2]s "$@"
export etc=%[1]s
exec unshare --mount --propagation slave sh -e -c '
	mount -t tmpfs -o mode=755 tmpfs "$etc/overlay"
	mkdir "$etc/overlay/upper" "$etc/overlay/work"
	mount -t overlay -o "lowerdir=/etc,upperdir=$etc/overlay/upper,workdir=$etc/overlay/work" overlay /etc
	mkdir -p /etc/containerd-shim-sandbox-v1
	mount --bind "$etc/config" /etc/containerd-shim-sandbox-v1
	exec %[2]s "$@"' sh "$@"
`

const defaultFile = "/etc/containerd-shim-sandbox-v1/config.toml"

// newDefaultsEnv is newEnv on a containerd of its own whose default configuration file is returned.
func newDefaultsEnv(t *testing.T) (e *env, file string) {
	t.Helper()
	harness.OursOnly(t, "a default configuration file")
	etc := publicDir(t)
	for _, dir := range []string{"overlay", "config"} {
		harness.Must(t, os.Mkdir(filepath.Join(etc, dir), 0o755))
	}
	programs := shared.Env
	script := filepath.Join(t.TempDir(), "containerd")
	harness.Must(t, os.WriteFile(script, fmt.Appendf(nil, withDefaults, etc, programs.Daemon), 0o755))
	programs.Daemon = script
	return newEnvOn(t, startContainerd(t, programs)), filepath.Join(etc, "config", "config.toml")
}

func TestDefaults_OfContainersWithoutOptions(t *testing.T) {
	e, file := newDefaultsEnv(t)
	write := func(text string) { e.must(os.WriteFile(file, []byte(text), 0o600), "write the file") }
	none := client.WithRuntime(e.containerd.Env.Runtime, nil)
	pids := publicDir(t)

	e.run("before", config{new: []client.NewContainerOpts{none}}, "true").wantExit(0)
	write("PidFile = '" + pids + "/other-{id}'\n[namespace.'" + e.namespace + "']\nPidFile = '" + pids + "/{namespace}-{id}'\n")
	c := e.run("c1", config{new: []client.NewContainerOpts{none}}, "sleep", "1000")
	pid, err := os.ReadFile(filepath.Join(pids, e.namespace+"-c1"))
	if got := strings.TrimSpace(string(pid)); err != nil || got != fmt.Sprint(c.Task.Pid()) {
		t.Errorf("the pid file of the default configuration has %q, %v, want %d", got, err, c.Task.Pid())
	}
	own := e.run("c2", config{new: withOptions(e, "StopSignal = 'INT'")}, "sleep", "1000")
	if names, err := os.ReadDir(pids); err != nil || len(names) != 1 {
		t.Errorf("pid files: %v, %v, want that of c1 alone", names, err)
	}
	c.kill()
	own.kill()

	// Each change is for the next container, also of a shim that runs.
	write("StopTimeot = '1s'")
	_, err = e.tryCreate("c3", config{new: []client.NewContainerOpts{none}}, "true")
	wantError(t, err, nil, defaultFile+": unknown key \"StopTimeot\"")
	write("")
	e.run("c5", config{new: []client.NewContainerOpts{none}}, "true").wantExit(0)
}

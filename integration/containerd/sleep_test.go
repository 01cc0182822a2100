// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

// idle is the annotation that has a container sleep.
func idle(text string) []oci.SpecOpts {
	return with(oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/idle": text}))
}

// ticks is a program that writes as long as it is not frozen, and hardly uses the CPU. Its end takes longer than idle.
const ticks = `exec 3<&0; cat <&3 >/in & trap 'sleep 3; exit 7' TERM; while :; do echo x >>/ticks; sleep 0.1; done`

// frozen reports whether the processes of a container are.
func (t *task) frozen() bool {
	t.e.Helper()
	is, err := harness.Frozen(int(t.Pid()))
	t.e.must(err, "freezer")
	return is
}

// awaitSleep returns when the container sleeps.
func (t *task) awaitSleep() {
	t.e.Helper()
	harness.Eventually(t.e, t.ID()+" sleeps", func() error {
		if !t.frozen() {
			return errors.New("it is awake")
		}
		return nil
	})
}

func (t *task) wantAwake(what string) {
	t.e.Helper()
	if t.frozen() {
		t.e.Errorf("%s: the container sleeps", what)
	}
}

func (t *task) wantState(want client.ProcessStatus) {
	t.e.Helper()
	status, err := t.Status(t.e.ctx)
	t.e.must(err, "state")
	if status.Status != want {
		t.e.Errorf("state of %s: %s, want %s", t.ID(), status.Status, want)
	}
}

// A container that nobody uses sleeps, is running for everybody, and is awake for whatever comes.
func TestSleep_WakesForWhateverComes(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	in, input := io.Pipe()
	cfg := config{opts: idle("after=1s,cpu=20%"), stdin: in}
	c := e.run("c1", cfg, "sh", "-c", ticks)
	c.awaitSleep()
	c.wantState("running")
	_, err := c.Metrics(e.ctx)
	e.must(err, "metrics")
	_, err = c.Pids(e.ctx)
	e.must(err, "pids")
	if !c.frozen() {
		t.Error("statistics, states and lists of processes woke it")
	}

	began := time.Now()
	if out := c.runExec("x1", "sh", "-c", "wc -l </ticks").out.String(); out == "0\n" {
		t.Errorf("an exec in it sees %q lines", out)
	}
	c.awaitSleep()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it slept again after %v", took)
	}

	_, err = io.WriteString(input, "line\n")
	e.must(err, "write to stdin")
	harness.Eventually(t, "the container has its input", func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/in", c.Pid()))
		if string(b) != "line\n" {
			return fmt.Errorf("it is %q, %w", b, err)
		}
		return nil
	})
	c.awaitSleep()

	e.must(c.Pause(e.ctx), "pause")
	c.wantState("paused")
	e.must(c.Resume(e.ctx), "resume")
	c.wantAwake("resumed")
	c.awaitSleep()
	e.must(input.Close(), "close stdin")
	e.must(c.Kill(e.ctx, syscall.SIGTERM), "SIGTERM")
	c.wantExit(7)
}

// SIGKILL, and a Delete by force, end one that sleeps.
func TestSleep_IsKilled(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	c := e.run("c1", config{opts: idle("after=1s")}, "sleep", "1000")
	c.awaitSleep()
	c.kill()
}

// A shim that is killed leaves no container that is frozen, and nobody can end: its exit is told.
func TestSleep_ShimIsKilled(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	c := e.run("c1", config{opts: idle("after=1s")}, "sleep", "1000")
	c.awaitSleep()
	e.must(syscall.Kill(e.shim("c1"), syscall.SIGKILL), "kill the shim")
	e.waitEvents("c1", "create c1 | start c1 | exit c1 137 | delete c1")
	c.closeIO()
}

// One that works, or has an exec, does not sleep.
func TestSleep_NotWhileItWorks(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	busy := e.run("busy", config{opts: idle("after=1s")}, "sh", "-c", "while :; do :; done")
	used := e.run("used", config{opts: idle("after=1s")}, "sleep", "1000")
	x := used.startExec("x", config{}, nil, "sleep", "1000")
	idler := e.run("idler", config{opts: idle("after=3s")}, "sleep", "1000") // sleeps when the others have had three times
	idler.awaitSleep()
	busy.wantAwake("it uses the CPU")
	used.wantAwake("an exec runs")
	x.kill()
	used.awaitSleep()
	for _, c := range []*task{busy, used, idler} {
		c.kill()
	}
}

// Many that sleep are woken at once, and none loses a byte.
func TestSleep_ManyAreWokenAtOnce(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	var all []*task
	for i := range 100 {
		all = append(all, e.run(fmt.Sprint("c", i), config{opts: idle("after=1s")}, "sleep", "1000"))
	}
	for _, c := range all {
		c.awaitSleep()
	}
	var execs []*process
	for i, c := range all {
		execs = append(execs, c.exec("x", config{}, nil, "echo", fmt.Sprint(i)))
	}
	errs := make(chan error, len(execs))
	for _, x := range execs {
		go func() { errs <- x.Start(e.ctx) }()
	}
	for range execs {
		e.must(<-errs, "start an exec")
	}
	for i, x := range execs {
		x.wantExit(0)
		x.awaitOutput()
		if out := x.out.String(); out != fmt.Sprintln(i) {
			t.Errorf("exec %d: %q", i, out)
		}
	}
	for _, c := range all {
		c.kill()
	}
}

func TestSleep_RefusesSettings(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	for i, text := range []string{
		"30s", "after=1ms", "after=25h", "after=1s,after=2s", "after=1s,cpu=1", "after=1s,cpu=0%", "after=1s,reclaim=yes", "cpu=1%", "after=1s,x",
	} {
		_, err := e.tryCreate(fmt.Sprint("c", i), config{opts: idle(text)}, "true")
		if err == nil || !strings.Contains(err.Error(), "after=TIME") {
			t.Errorf("idle=%q: %v, want what is allowed", text, err)
		}
	}
	shared := append(idle("after=1s"), oci.WithHostNamespace("pid"))
	_, err := e.tryCreate("shared", config{opts: shared}, "true")
	if err == nil || !strings.Contains(err.Error(), "shares its pid namespace") {
		t.Errorf("with the PID namespace of the node: %v", err)
	}
}

// A connection to a socket that the container listens on wakes it.
func TestSleep_WakesByAConnection(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	e.allow("listen")
	c := e.run("c1", config{opts: append(idle("after=1s"), sockets("udp://127.0.0.1:5353"))},
		"sh", "-c", "while :; do head -c 6 <&3; echo; done")
	for i := range 3 {
		c.awaitSleep()
		c.dial("udp/127.0.0.1/5353", fmt.Sprint("hello", i))
		want := fmt.Sprint("hello", i, "\n")
		harness.Eventually(t, "its answer", func() error {
			if out := c.out.String(); !strings.HasSuffix(out, want) {
				return fmt.Errorf("output %q, want %q at its end", out, want)
			}
			return nil
		})
	}
	c.kill()
}

// What the shim tells of its sleep is told once each, also over an upgrade, and ends with the container.
func TestSleep_IsTold(t *testing.T) {
	e := newUpgradable(t)
	c := e.run("c1", config{opts: idle("after=1s")}, "sleep", "1000")
	wait := func(changes uint64) <-chan error {
		told := make(chan error, 1)
		go func() {
			i, err := harness.WaitIdle(e.ctx, e.address("c1"), "c1", changes)
			if asleep := changes%2 == 0; err == nil && (i.Asleep != asleep || i.Changes != changes+1) {
				err = fmt.Errorf("after %d changes it tells %+v", changes, i)
			}
			told <- err
		}()
		return told
	}
	e.must(<-wait(0), "the first sleep")
	woken := wait(1)
	e.upgrade("c1")
	x := c.startExec("x", config{}, nil, "sleep", "1000")
	e.must(<-woken, "an exec")
	again := wait(2)
	x.kill()
	e.must(<-again, "the second sleep")
	woken, gone := wait(3), wait(99)
	e.must(c.Kill(e.ctx, syscall.SIGKILL), "SIGKILL")
	c.wantExit(137) // which deletes it
	e.must(<-woken, "SIGKILL")
	if err := <-gone; !errdefs.IsNotFound(err) {
		t.Errorf("after its deletion: %v, want not found", err)
	}
}

// A successor of the shim leaves it asleep, and wakes it.
func TestUpgrade_ASleeperSleepsOn(t *testing.T) {
	e := newUpgradable(t)
	e.allow("listen")
	c := e.run("c1", config{opts: append(idle("after=1s"), sockets("udp://127.0.0.1:5353"))},
		"sh", "-c", "while :; do head -c 6 <&3; echo; done")
	c.awaitSleep()
	e.upgrade("c1")
	if !c.frozen() {
		t.Error("the upgrade woke it")
	}
	c.dial("udp/127.0.0.1/5353", "hello!")
	harness.Eventually(t, "its answer", func() error {
		if out := c.out.String(); out != "hello!\n" {
			return fmt.Errorf("output %q", out)
		}
		return nil
	})
	c.awaitSleep()
	x := c.startExec("x", config{}, nil, "sleep", "1000")
	e.upgrade("c1")
	idler := e.run("idler", config{opts: idle("after=3s")}, "sleep", "1000")
	idler.awaitSleep()
	c.wantAwake("an exec runs in it")
	x.kill()
	c.awaitSleep()
	c.runExec("y", "true")
	c.kill()
	idler.kill()
}

// By hand.
func TestSleep_ByHand(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	tool, err := harness.Sandboxctl(t.TempDir())
	e.must(err, "sandboxctl")
	ctl := func(args ...string) (string, error) {
		node := []string{"--address", e.containerd.Address, "--state", e.containerd.State, "--namespace", e.namespace}
		args = append(node, args...)
		out, err := exec.Command(tool, args...).CombinedOutput()
		return string(out), err
	}
	c := e.run("c1", config{opts: idle("after=1h")}, "sleep", "1000")
	plain := e.run("plain", config{opts: idle("none")}, "sleep", "1000")
	out, err := ctl("sleep", "c1")
	if err != nil || !c.frozen() {
		t.Errorf("sleep: %v: %s", err, out)
	}
	if out, err = ctl("ps"); err != nil || !strings.Contains(out, "asleep") {
		t.Errorf("ps: %v: %s", err, out)
	}
	if out, err = ctl("inspect", "c1"); err != nil || !strings.Contains(out, "asleep since") {
		t.Errorf("inspect: %v: %s", err, out)
	}
	if out, err = ctl("wake", "c1"); err != nil {
		t.Errorf("wake: %v: %s", err, out)
	}
	c.wantAwake("woken by hand")
	if out, err = ctl("inspect", "c1"); err != nil || !strings.Contains(out, "1 times by request") {
		t.Errorf("inspect: %v: %s", err, out)
	}
	if out, err = ctl("sleep", "plain"); err == nil || !strings.Contains(out, "has no setting idle") {
		t.Errorf("sleep of one that never sleeps: %v: %s", err, out)
	}
	x := c.startExec("x", config{}, nil, "sleep", "1000")
	if out, err = ctl("sleep", "c1"); err == nil || !strings.Contains(out, "an exec or a request is under way") {
		t.Errorf("sleep while an exec runs: %v: %s", err, out)
	}
	x.kill()
	c.kill()
	plain.kill()
}

// Pages of files go, whatever the version of cgroups is.
func TestSleep_GivesMemoryBack(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	e := newEnv(t)
	const size = 64 << 20
	const write = "dd if=/dev/zero of=/big bs=1M count=64 2>/dev/null; sync; touch /written; exec sleep 1000"
	c := e.run("c1", config{opts: idle("after=2s")}, "sh", "-c", write)
	c.file("/written")
	before := c.memory()
	if before < size/2 {
		t.Skipf("CANNOT RUN HERE: a file of %d bytes takes %d bytes of memory", size, before)
	}
	c.awaitSleep()
	harness.Eventually(t, "its memory is given back", func() error {
		if now := c.memory(); now > before/10 {
			return fmt.Errorf("it has %d bytes, and had %d", now, before)
		}
		return nil
	})
	c.runExec("x", "cmp", "-n", "1000", "/big", "/dev/zero")
	c.kill()
}

// memory returns the memory of the container's cgroup.
func (t *task) memory() uint64 {
	t.e.Helper()
	usage, err := harness.MemoryOf(int(t.Pid()))
	t.e.must(err, "memory of the container")
	return usage
}

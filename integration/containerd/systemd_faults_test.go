// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func pidsLimit(n int64) client.UpdateTaskOpts {
	return client.WithResources(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}})
}

func TestSystemd_IsConnectedToAgain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		guest bool
		fault func(t *testing.T)
	}{
		{"after systemd has executed itself again", false, func(t *testing.T) { t.Helper(); systemctl(t, "daemon-reexec") }},
		{"after the D-Bus daemon was restarted", true, func(t *testing.T) { t.Helper(); systemctl(t, "restart", "dbus.service") }},
		{"after the D-Bus daemon was killed", true, func(t *testing.T) {
			t.Helper()
			before := property(t, "dbus.service", "MainPID")
			systemctl(t, "kill", "--signal=KILL", "dbus.service")
			harness.Eventually(t, "another D-Bus daemon", func() error {
				systemctl(t, "start", "dbus.service")
				if pid := property(t, "dbus.service", "MainPID"); pid == before || pid == "0" {
					return fmt.Errorf("its pid is %s", pid)
				}
				return nil
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.guest {
				needGuest(t)
			}
			e := newSystemdEnv(t)
			c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
			dir := cgroupOf(t, e.scopeOf("c1"))
			tt.fault(t)
			x := c.exec("e1", config{}, nil, "true")
			e.must(x.Start(e.ctx), "start e1")
			x.wantExit(0)
			e.must(c.Update(e.ctx, pidsLimit(33)), "update")
			wantProperty(t, e.scopeOf("c1"), "TasksMax", "33")
			c.kill()
			wantNoUnit(t, e.scopeOf("c1"), dir)
			again := e.run("c2", config{opts: with(e.scoped("c2"))}, "true")
			again.wantExit(0)
		})
	}
}

// withoutDBus takes the sockets away at which systemd can be asked. The returned function puts them back.
func withoutDBus(t *testing.T) (back func()) {
	t.Helper()
	sockets := []string{"/run/dbus/system_bus_socket", "/run/systemd/private"}
	for _, name := range sockets {
		if err := os.Rename(name, name+".away"); err != nil {
			t.Fatal(err)
		}
	}
	back = func() {
		for _, name := range sockets {
			_ = os.Rename(name+".away", name) // it was put back already
		}
	}
	t.Cleanup(back)
	return back
}

func TestSystemd_ThatCannotBeReached(t *testing.T) {
	e := newSystemdEnv(t)
	needGuest(t)
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
	orphan := e.run("orphan", config{opts: with(e.scoped("orphan"))}, "sleep", "1000")
	dir, orphaned := cgroupOf(t, e.scopeOf("c1")), cgroupOf(t, e.scopeOf("orphan"))
	daemon := dbusDaemon(t)
	back := withoutDBus(t)
	e.must(syscall.Kill(daemon, syscall.SIGKILL), "kill the D-Bus daemon")
	t.Cleanup(func() { back(); systemctl(t, "start", "dbus.service") })

	_, err := e.tryCreate("c2", config{opts: with(e.scoped("c2"))}, "true")
	wantSystemdError(t, "create", err)
	wantSystemdError(t, "update", c.Update(e.ctx, pidsLimit(44)))
	x := c.exec("e1", config{}, nil, "true")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	c.kill()
	wantGone(t, dir)
	e.must(syscall.Kill(e.shim("orphan"), syscall.SIGKILL), "kill the shim of orphan")
	harness.Eventually(t, "what the shim left is removed", func() error {
		if _, err := os.Stat(orphaned); err == nil {
			return fmt.Errorf("there is %s", orphaned)
		}
		return nil
	})
	orphan.closeIO()

	back()
	systemctl(t, "start", "dbus.service")
	for _, id := range []string{"c1", "c2", "orphan"} {
		wantNoUnit(t, e.scopeOf(id), "")
	}
}

// dbusDaemon is the pid of the D-Bus daemon.
func dbusDaemon(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "dbus.service", "MainPID"))
	if err != nil || pid == 0 {
		t.Fatalf("MainPID of dbus.service: %d, %v", pid, err)
	}
	return pid
}

// wantSystemdError compares an error of a call that needs systemd.
func wantSystemdError(t *testing.T, call string, err error) {
	t.Helper()
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "systemd") ||
		!strings.Contains(err.Error(), "D-Bus") {
		t.Errorf("%s: %v, want failed precondition that names systemd and D-Bus", call, err)
	}
}

// stopDBus makes the D-Bus daemon one that accepts and does not answer. The returned function lets it go on.
func stopDBus(t *testing.T) (goOn func()) {
	t.Helper()
	pid := dbusDaemon(t)
	goOn = func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // it goes on already
	t.Cleanup(goOn)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return goOn
}

// within fails the test when call takes longer than limit.
func within(t *testing.T, limit time.Duration, what string, call func() error) error {
	t.Helper()
	begin := time.Now()
	err := call()
	if took := time.Since(begin); took > limit {
		t.Errorf("%s took %v, want %v at most", what, took, limit)
	}
	return err
}

func TestSystemd_ThatDoesNotAnswer(t *testing.T) {
	e := newSystemdEnv(t)
	needGuest(t)
	const bound, once, soon = 30 * time.Second, 15 * time.Second, 5 * time.Second
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
	dir := cgroupOf(t, e.scopeOf("c1"))
	goOn := stopDBus(t)

	wantSystemdError(t, "create", within(t, bound, "create", func() error {
		_, err := e.tryCreate("c2", config{opts: with(e.scoped("c2"))}, "true")
		return err
	}))
	updated := make(chan error, 1)
	go func() { updated <- c.Update(e.ctx, pidsLimit(33)) }()
	// Whatever hangs, these answer.
	e.must(within(t, soon, "status", func() error { _, err := c.process.Status(e.ctx); return err }), "status")
	wantSystemdError(t, "update", within(t, once, "update", func() error { return <-updated }))
	x := c.exec("e1", config{}, nil, "true")
	e.must(within(t, soon, "exec", func() error { return x.Start(e.ctx) }), "start e1")
	x.wantExit(0)
	e.must(within(t, soon, "kill", func() error { return c.process.Kill(e.ctx, syscall.SIGKILL) }), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	wantSystemdError(t, "delete",
		within(t, soon, "delete", func() error { _, err := c.process.Delete(e.ctx); return err }))
	wantGone(t, dir)
	goOn()
	c.delete()
	wantNoUnit(t, e.scopeOf("c1"), dir)
	wantNoUnit(t, e.scopeOf("c2"), "")
}

func TestSystemd_UnansweredIsWaitedForOnlyAsLongAsTheCall(t *testing.T) {
	e := newSystemdEnv(t)
	needGuest(t)
	goOn := stopDBus(t)
	ctx, cancel := context.WithTimeout(e.ctx, 3*time.Second)
	defer cancel()
	impatient := *e
	impatient.ctx = ctx
	err := within(t, 10*time.Second, "create", func() error {
		_, err := impatient.tryCreate("c1", config{opts: with(e.scoped("c1"))}, "true")
		return err
	})
	if !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("create: %v, want deadline exceeded", err)
	}
	harness.Eventually(t, "the shim of what was not created is gone", func() error {
		if shims := harness.Shims(e.namespace, ""); len(shims) > 0 {
			return fmt.Errorf("there are %v", shims)
		}
		return nil
	})
	goOn()
	wantNoUnit(t, e.scopeOf("c1"), "")
}

// Where the container made cgroups of its own, systemd is asked to put an exec into the scope.
func TestSystemd_UnansweredDelaysNoContainerWithAnExec(t *testing.T) {
	needCgroup2(t)
	e := newSystemdEnv(t)
	needGuest(t)
	c := e.run("c1", config{opts: with(delegated, e.scoped("c1"))}, "sh", "-c", nest+"sleep 1000")
	c.out.WaitFor(t, "nested")
	goOn := stopDBus(t)
	x := c.exec("e1", config{}, nil, "true")
	wantSystemdError(t, "exec", within(t, 30*time.Second, "exec", func() error { return x.Start(e.ctx) }))
	goOn()
	x.delete()
	y := c.exec("e2", config{}, nil, "true")
	e.must(y.Start(e.ctx), "start e2")
	y.wantExit(0)
	c.kill()
}

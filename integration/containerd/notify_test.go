// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// tell makes a shell able to send messages with busybox alone, whose logger sends what it is given to /dev/log. What it
// puts before and after the message is on other lines. It lives on, since older kernels do not tell of a sender that is
// dead where it was; so must the shell, until the message was read.
const tell = `ln -s $NOTIFY_SOCKET /dev/log
tell() { (echo .; sleep 1000) | logger -t "$(printf 'x\n%b\nx' "$1")" & }
`

func notified(timeout string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{
		"io.containerd.sandbox.v1/notify": "true", "io.containerd.sandbox.v1/notify-timeout": timeout,
	})
}

// starting starts a container, and gives the outcome when there is one.
func (t *task) starting() <-chan error {
	done := make(chan error, 1)
	go func() { done <- t.process.Start(t.e.ctx) }() // ends with the test's context at the latest
	return done
}

func (t *task) notStarted(started <-chan error) {
	t.e.Helper()
	select {
	case err := <-started:
		t.e.Fatalf("Start = %v before the container was ready", err)
	default:
	}
}

// file waits until a program has made a file in the container's root file system.
func (t *task) file(name string) {
	t.e.Helper()
	harness.Eventually(t.e, "the container makes "+name, func() error {
		_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(int(t.Pid())), "root", name))
		return err
	})
}

func TestNotify_StartReturnsWhenTheContainerIsReady(t *testing.T) {
	harness.OursOnly(t, "notify")
	e := newEnv(t)
	c := e.create("c1", config{opts: with(notified("60s"))}, "sh", "-c", tell+`
		touch /tmp/runs
		while ! test -e /tmp/go; do sleep 0.01; done
		tell "STATUS=almost there\nREADY=1"; exec sleep 1000`)
	started := c.starting()
	c.file("/tmp/runs")
	c.notStarted(started)
	// It answers meanwhile, and execs run. The program may be faster than the shim that has let it go.
	harness.Eventually(t, "the container runs while it is not ready", func() error {
		status, err := c.process.Status(e.ctx)
		if err == nil && status.Status != client.Running {
			err = fmt.Errorf("state = %s", status.Status)
		}
		return err
	})
	x := c.runExec("e1", "sh", "-c", "echo -n $NOTIFY_SOCKET; touch /tmp/go")
	e.must(<-started, "start c1")
	if got := x.out.String(); got != "" {
		t.Errorf("an exec has NOTIFY_SOCKET=%q, want none", got)
	}
	e.wantLog("almost there")
	c.kill()
	e.wantEvents("c1", "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 | exit c1 137 | delete c1")
}

func TestNotify_NotReadyInTimeIsStopped(t *testing.T) {
	harness.OursOnly(t, "notify")
	e := newEnv(t)
	timeout := harness.Slow(time.Second).String()
	c := e.create("c1", config{opts: with(notified(timeout))}, "sh", "-c",
		tell+`tell "STATUS=no database\nERRNO=111"; sleep 1000`)
	err := c.process.Start(e.ctx)
	wantError(t, err, context.DeadlineExceeded, "no READY=1 came in time (notify-timeout "+timeout,
		`last STATUS "no database", ERRNO 111`)
	c.wantExit(137) // at once: Start has waited for it
	e.wantEvents("c1", "create c1 | start c1 | exit c1 137 | delete c1")
}

// Permissions are those of the container: its root owns the socket, and each of its users may send.
func TestNotify_EveryUserOfAUserNamespaceCanSendIt(t *testing.T) {
	harness.OursOnly(t, "notify")
	letOthersIn(t)
	e := newEnv(t)
	c := e.create("c1", config{
		opts: with(oci.WithUserNamespace(idMap, idMap), oci.WithAddedCapabilities([]string{"CAP_SYS_ADMIN"}), notified("60s")),
		new:  []client.NewContainerOpts{client.WithUserNSRemappedSnapshot("c1-root", e.image, idMap, idMap)},
	}, "sh", "-c", tell+`stat -c %u:%g $NOTIFY_SOCKET
mount -o remount,bind,rw,nosuid,nodev,noexec /run/notify 2>/dev/null # as root of a user namespace may, without AppArmor
touch /run/notify/x 2>/dev/null && echo wrote to the bundle
(echo .; sleep 1000) | su tester -c "logger -t 'x
READY=1
x'" & exec sleep 1000`)
	e.must(c.process.Start(e.ctx), "start")
	if got := c.out.String(); got != "0:0\n" {
		t.Errorf("owner of the socket, and what it could do: %q, want 0:0", got)
	}
	c.kill()
}

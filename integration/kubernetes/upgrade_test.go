// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

// restarts is the part of a status that tells of another run.
var restarts = regexp.MustCompile(`(?s)"lastState": (\{\}|\{.*?\n   \}),|"restartCount": \d+,`)

// upgrade installs a shim that is another file, as a new release is.
func (s *session) upgrade() {
	text, err := os.ReadFile(s.source)
	s.Must(err, "shim")
	dir := filepath.Join(s.Session.Dir, "release")
	s.Must(os.Mkdir(dir, 0o755), "release")
	other := filepath.Join(dir, shimName)
	s.Must(os.WriteFile(other, append(text, s.namespace...), 0o755), "release")
	s.Must(s.install(s.Context, other), "upgrade")
}

// upgradeShims replaces the installed shim, without the restart of containerd that ends its streams, and has every shim
// become the new one. The runc shim goes on as it is.
func (s *session) upgradeShims() {
	if s.way == runcShim {
		return
	}
	text, err := os.ReadFile(s.source)
	s.Must(err, "shim")
	next := s.Env.Shim + ".next"
	s.Must(os.WriteFile(next, append(text, s.namespace+" in place"...), 0o755), "release")
	s.Must(errors.Join(os.Chmod(next, 0o755), os.Rename(next, s.Env.Shim)), "release")
	shims := s.shims()
	if len(shims) == 0 {
		s.Fatalf("there are no shims")
	}
	for _, shim := range shims {
		s.Must(harness.Poll(func() error {
			_, upgraded, err := harness.Upgrade(s.Context, s.SocketOf(shim.Pid), false)
			if err == nil && !upgraded {
				err = errors.New("it runs the installed program")
			}
			if err != nil && !errdefs.IsUnavailable(err) { // a probe may be under way
				s.Fatalf("upgrade of %v: %w", shim, err)
			}
			return err
		}), fmt.Sprintf("upgrade of %v", shim))
	}
}

// interrupted is how what untilInterrupt starts ends.
const interrupted = 5

// untilInterrupt is a kubectl that a person ends by control-C, whatever its exit status is then.
func (s *session) untilInterrupt(command string) *terminal {
	return &terminal{s.Terminal("/bin/sh", "-c", fmt.Sprintf("trap : INT; kubectl %s; exit %d", command, interrupted)), s}
}

// forwarded is the address at which a port-forward says that it listens.
var forwarded = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> `)

// forward connects to a port of a pod, through a port-forward that goes on.
func (s *session) forward(t *terminal) net.Conn {
	var found []string
	s.Must(harness.Poll(func() error {
		if found = forwarded.FindStringSubmatch(t.Shown()); found == nil {
			return fmt.Errorf("port-forward shows %q", t.Shown())
		}
		return nil
	}), "port-forward")
	conn, err := net.Dial("tcp", found[1])
	s.Must(err, "port-forward")
	return conn
}

// echoes sends a line, which must come back.
func (s *session) echoes(conn net.Conn, line string) {
	s.Must(conn.SetDeadline(time.Now().Add(harness.Slow(30*time.Second))), "connection")
	_, err := fmt.Fprintln(conn, line)
	s.Must(err, "send "+line)
	got, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || strings.TrimSpace(got) != line {
		s.Fatalf("the connection says %q, %v, want %q", got, err, line)
	}
}

// upgradeUnderStreams upgrades all shims while an exec, a log and a port of a pod are in use.
func upgradeUnderStreams(s *session) {
	s.Quiet(`ready box`)
	sh := s.terminal("exec", "-it", "box", "-c", "c", "--", "sh")
	sh.asks("echo $((6*7))", "42")
	logs := s.untilInterrupt("logs -f box -c c")
	logs.shows("3")
	port := s.untilInterrupt("port-forward box :8080")
	conn := s.forward(port)
	defer func() { _ = conn.Close() }() // it was only used
	s.echoes(conn, "before")
	for i := range 3 {
		s.upgradeShims()
		s.echoes(conn, fmt.Sprintf("after %d", i))
		sh.asks(fmt.Sprintf("echo $((%d*1000))", i+1), fmt.Sprintf("%d000", i+1))
		sh.Resizes(uint16(40+i), 100)
		sh.asks("stty size", fmt.Sprintf("%d 100", 40+i))
		var n int
		lines := strings.Fields(logs.Shown())
		_, err := fmt.Sscan(lines[len(lines)-2], &n) // the last one may not be complete
		s.Must(err, "logs")
		logs.shows(fmt.Sprint(n + 20))
		s.Quiet(`kubectl exec box -c d -- true`)
	}
	again := s.forward(port)
	s.echoes(again, "another connection")
	s.Must(again.Close(), "connection")
	sh.Types("exit 7\r")
	sh.Ends(7)
	for _, t := range []*terminal{logs, port} {
		t.Types("\x03")
		t.Ends(interrupted)
	}
}

func TestKubernetes_Upgrade(t *testing.T) {
	compare(t, []kubeCase{
		{
			name: "an upgrade of the shim under running pods", alone: true,
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "trap 'exit 3' TERM; while :; do sleep 0.1; done"], readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}}, {name: d, command: [sleep, "1000"]}]`},
			run: func(s *session) {
				s.Quiet(`ready box`)
				s.upgrade()
			},
			script: `kubectl exec box -c c -- echo hello; get box '{.status.containerStatuses[*].restartCount}'
				kubectl exec box -c c -- kill 1; await "1 0" get box '{.status.containerStatuses[*].restartCount}'; ready box
				sed 's/"name": *"box"/"name":"next"/' $W/box.json | kubectl create -f - >/dev/null; ready next; kubectl exec next -c d -- echo hello`,
			want: "hello\n0 0\nhello\n",
		},
		{
			name: "an upgrade of all shims, under exec -it, logs -f and port-forward", alone: true,
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "n=0; trap 'exit 3' TERM; while :; do n=$((n+1)); echo $n; sleep 0.1; done"], readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}}, {name: d, command: [sh, -c, "exec busybox nc -ll -p 8080 -e cat"], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}]`},
			run:  upgradeUnderStreams,
			script: `kubectl exec box -c d -- echo hello; get box '{.status.containerStatuses[*].restartCount}'
				kubectl logs box -c c >$W/got; seq $(wc -l <$W/got) | cmp - $W/got && echo all
				kubectl exec box -c c -- kill 1; await "1 0" get box '{.status.containerStatuses[*].restartCount}'; ready box; kubectl exec box -c c -- echo hello`,
			want: "hello\n0 0\nall\nhello\n",
		},
	})
}

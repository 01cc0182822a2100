// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

func sockets(addresses string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/listen": addresses})
}

// inspect prints init's variables about its sockets, the sockets, and then what comes by the first.
const inspect = `echo $LISTEN_PID $$ $LISTEN_FDS $LISTEN_FDNAMES
for fd in 3 4 5 6; do readlink /proc/self/fd/$fd | cut -d: -f1; done
exec head -c 6 <&3`

func TestListen_InitFindsSocketsInItsOwnNetwork(t *testing.T) {
	harness.OursOnly(t, "listen")
	e := newEnv(t)
	e.allow("listen")
	three := sockets("udp://127.0.0.1:5353 web=tcp://0.0.0.0:80 log=unix:///run/log.sock?type=dgram&mode=0600")
	c := e.create("c1", config{opts: with(three)}, "sh", "-c", inspect)
	x := c.runExec("e1", "sh", "-c", "stat -c '%F %a %u' /run/log.sock; ip -o link | grep -c .")
	if got, want := x.out.String(), "socket 600 0\n1\n"; got != want {
		t.Errorf("from inside, before init runs: %q, want %q; stderr %q", got, want, x.err)
	}
	c.dial("tcp/127.0.0.1/80", "")
	c.dial("udp/127.0.0.1/5353", "hello!")
	e.must(c.process.Start(e.ctx), "start")
	c.wantExit(0)
	if got, want := c.out.String(), "1 1 3 unknown:web:log\nsocket\nsocket\nsocket\nhello!"; got != want {
		t.Errorf("init prints %q, want %q; stderr %q", got, want, c.err)
	}
}

// dial sends text to an address in the network of a container: tcp/127.0.0.1/80, say.
func (t *task) dial(address, text string) {
	t.e.Helper()
	out, err := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", t.Pid()),
		"bash", "-c", "printf %s \"$1\" >/dev/$0", address, text).CombinedOutput()
	if err != nil {
		t.e.Fatalf("send to %s: %v: %s", address, err, out)
	}
}

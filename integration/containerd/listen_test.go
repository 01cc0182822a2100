// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func sockets(addresses string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/listen": addresses})
}

// inspect prints init's variables about its sockets, the sockets, and then what comes by the first.
const inspect = `echo $LISTEN_PID $$ $LISTEN_FDS $LISTEN_FDNAMES
for fd in 3 4 5 6; do readlink /proc/self/fd/$fd | cut -d: -f1; done
exec head -c 6 <&3`

func TestListen_InitFindsItsSockets(t *testing.T) {
	harness.OursOnly(t, "listen")
	e := newEnv(t)
	e.allow("listen")
	three := sockets("udp://127.0.0.53:15353 web=tcp://127.0.0.53:18080 log=unix:///run/log.sock?type=dgram&mode=0600")
	c := e.create("c1", config{opts: with(oci.WithHostNamespace(specs.NetworkNamespace), three)}, "sh", "-c", inspect)
	x := c.runExec("e1", "stat", "-c", "%F %a %u", "/run/log.sock")
	if got, want := x.out.String(), "socket 600 0\n"; got != want {
		t.Errorf("from inside, before init runs: %q, want %q; stderr %q", got, want, x.err)
	}
	c.dial("tcp/127.0.0.53/18080", "")
	c.dial("udp/127.0.0.53/15353", "hello!")
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

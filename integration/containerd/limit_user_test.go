// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// interfere is a program that tries to get at the process $1: to write to its memory, as by ptrace(2), and to its
// output, to read its environment, to signal it, and to write to its files.
const interfere = `
try() { if ( eval "$2" ) 2>/dev/null; then echo "$1 yes"; else echo "$1 no"; fi; }
try memory 'exec 3<>/proc/$pid/mem'
try output 'echo forged >/proc/$pid/fd/1'
try environment 'cat /proc/$pid/environ >/dev/null'
try signal 'kill -0 $pid'
for dir in /tmp /dev/shm; do try file 'echo forged >$dir/of-the-run'; try removal 'rm -f $dir/of-the-run'; done
`

// Runs of one user are one program to the kernel: docs/executors.md asks for a user for each.
func TestLimit_AUserForEachRunKeepsThemApart(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("wall-time=1m,output=64Ki"))},
		"sh", "-c", "mkdir -p /tmp && chmod 1777 /tmp && touch /tmp/ready && exec sleep 1000")
	c.file("/tmp/ready")
	asUser := func(id string, user uint32, program string) *process {
		x := c.exec(id, config{}, func(p *specs.Process) {
			p.User = specs.User{UID: user, GID: user}
			p.Capabilities, p.NoNewPrivileges = &specs.LinuxCapabilities{}, true
		}, "sh", "-c", program)
		j.must(x.Start(j.ctx), "start "+id)
		return x
	}
	const victim = 10001
	run := asUser("run", victim, "cd /tmp && echo mine >of-the-run && echo mine >/dev/shm/of-the-run && echo pid $$; exec sleep 1000")
	run.out.WaitFor(t, "pid")
	pid := strings.Fields(run.out.String())[1]
	for _, tt := range []struct {
		id, pid string
		user    uint32
		want    string
	}{
		{"other-user", pid, victim + 1, "no"},
		{"init", "1", victim + 1, "no"},
		{"same-user", pid, victim, "yes"}, // else the others show nothing
	} {
		x := asUser(tt.id, tt.user, "pid="+tt.pid+interfere)
		x.wantExit(0)
		for line := range strings.Lines(x.out.String()) {
			what, got, _ := strings.Cut(strings.TrimSpace(line), " ")
			if tt.want == "yes" && (what == "memory" || what == "output") {
				continue // a security module may refuse the one, and the pipe is that of the container's root
			}
			if got != tt.want {
				t.Errorf("%s: %s: %q, want %s", tt.id, what, got, tt.want)
			}
		}
		if tt.want == "no" && strings.Contains(run.out.String(), "forged") {
			t.Errorf("%s: the output of the run is forged", tt.id)
		}
	}
	j.must(run.Kill(j.ctx, syscall.SIGKILL), "kill")
	run.wantExit(137)
	if v := j.verdict("c1", "run"); v.Stdout.Written != int64(len(run.out.String())) {
		t.Errorf("verdict: %s written, want %d bytes", fmt.Sprint(v.Stdout), len(run.out.String()))
	}
	c.kill()
}

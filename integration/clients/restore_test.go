// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

func (s *session) killShim() {
	shims := harness.Shims(namespace, s.Quiet("docker inspect -f '{{.Id}}' box"))
	if len(shims) != 1 {
		s.Fatalf("the container has the shims %v, want one", shims)
	}
	s.Must(syscall.Kill(shims[0].Pid, syscall.SIGKILL), "kill the shim")
}

func (s *session) withoutDockerd(work func()) {
	s.Must(s.end(syscall.SIGKILL), "kill dockerd")
	work()
	s.Must(s.start(), "start dockerd")
}

// initPid is the process id of the first process of the container box.
func (s *session) initPid() (pid int) {
	_, err := fmt.Sscan(s.Quiet("docker inspect -f '{{.State.Pid}}' box"), &pid)
	s.Must(err, "process id")
	return pid
}

func (s *session) gone(pid int) {
	s.Must(harness.Poll(func() error {
		if harness.Alive(pid) {
			return errors.New("it lives")
		}
		return nil
	}), fmt.Sprintf("the end of process %d", pid))
}

func TestDocker_Restore(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name: "live-restore: the container goes on, its output is kept",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sh -c 'n=0; until test -e /end; do n=$((n+1)); echo $n; sleep 0.05; done; echo end; exit 7' >/dev/null; await true docker inspect -f '{{gt .State.Pid 0}}' box`)
				pid := s.initPid()
				s.withoutDockerd(func() {})
				if again := s.initPid(); again != pid {
					s.Fatalf("the first process is %d, was %d", again, pid)
				}
			},
			// The end of the container may kill touch before it exits.
			script: `docker exec box touch /end || :; docker wait box; docker logs box >$W/log; tail -n 1 $W/log; head -n -1 $W/log >$W/got; seq $(wc -l <$W/got) | cmp - $W/got && echo all`,
			want:   "7\nend\nall\n",
		},
		{
			name: "live-restore: a container that ends while dockerd is dead, its last output",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sh -c 'echo first; while test -e /go; do :; done; until test -e /end; do sleep 0.05; done; echo last; exit 9' >/dev/null; await first docker logs box`)
				pid := s.initPid()
				s.withoutDockerd(func() {
					s.Shell(fmt.Sprintf("touch /proc/%d/root/end", pid))
					s.gone(pid)
				})
			},
			script: `await exited docker inspect -f '{{.State.Status}}' box; docker wait box; PATIENCE=10 await "first
last" docker logs box`,
			want: "9\n",
			runc: "the last output is lost",
		},
		{
			name: "live-restore: exec, stop, restart afterwards",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sh -c 'trap "exit 5" TERM; while :; do sleep 0.1; done' >/dev/null`)
				s.withoutDockerd(func() {})
			},
			script: `docker exec box echo hello; docker stop box; docker wait box; docker start box; docker exec box echo again; docker restart box`,
			want:   "hello\nbox\n5\nbox\nagain\nbox\n",
		},
		{
			name: "live-restore of a paused one",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sleep 1000 >/dev/null; docker pause box`)
				s.withoutDockerd(func() {})
			},
			script: `docker inspect -f '{{.State.Status}}' box; docker unpause box; docker exec box echo hello`,
			want:   "paused\nbox\nhello\n",
		},
		{
			name: "--restart always over a dockerd that is dead",
			run: func(s *session) {
				s.Shell(`docker run -d --restart always --name box busybox sleep 1000 >/dev/null`)
				pid := s.initPid()
				s.withoutDockerd(func() {
					s.Must(syscall.Kill(pid, syscall.SIGKILL), "kill init")
					s.gone(pid)
				})
			},
			script: `await running docker inspect -f '{{.State.Status}}' box; docker exec box echo hello`,
			want:   "hello\n",
		},
		{
			name: "a killed shim: the container has ended, and starts again",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sleep 1000 >/dev/null`)
				pid := s.initPid()
				s.killShim()
				s.gone(pid)
			},
			script: `docker wait box; docker inspect -f '{{.State.Status}} {{.State.OOMKilled}}' box; docker start box; docker exec box echo hello`,
			want:   "137\nexited false\nbox\nhello\n",
		},
		{
			name: "a killed shim under an exec",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sleep 1000 >/dev/null; docker exec -d box sleep 1001; await "sleep 1000
sleep 1001" processes box`)
				pid := s.initPid()
				s.killShim()
				s.gone(pid)
			},
			script: `docker wait box; docker rm box`,
			want:   "137\nbox\n",
			runc:   "its socket stays",
		},
		{
			name: "a restart of containerd",
			run: func(s *session) {
				s.Shell(`docker run -d --name box busybox sh -c 'trap "exit 5" TERM; while :; do sleep 0.1; done' >/dev/null`)
				pid := s.initPid()
				s.Must(s.Stop(), "stop containerd")
				s.Must(s.Containerd.Start(s.Context), "start containerd")
				if !harness.Alive(pid) {
					s.Fatalf("the container has ended")
				}
			},
			script: `await hello docker exec box echo hello; docker stop box; docker wait box; docker start box`,
			want:   "box\n5\nbox\n",
		},
	})
}

// Each has a daemon of its own, whose containers have users of their own.
func TestDocker_UserNamespace(t *testing.T) {
	d := remapped(t)
	compare(t, d, []clientCase{
		{
			name:   "userns-remap: root is another outside",
			script: `docker run -d --name box busybox sleep 1000 >/dev/null; docker exec box id -u; cat /proc/$(docker inspect -f '{{.State.Pid}}' box)/uid_map | tr -s ' '; stat -c %u /proc/$(docker inspect -f '{{.State.Pid}}' box)`,
			want:   "0\n 0 100000 65536\n100000\n",
		},
		{
			name: "userns-remap: exec, a volume, -t, stop",
			script: `docker run -d --name box -v named:/v busybox sh -c 'trap "exit 5" TERM; while :; do sleep 0.1; done' >/dev/null
				docker exec box sh -c 'touch /v/f; stat -c %u /v/f'; docker exec -u tester box id -u; docker exec -t box tty; docker stop box; docker wait box`,
			want: "0\n1000\n/dev/pts/0\r\nbox\n5\n",
		},
		{
			name: "userns-remap: /dev/stdout and /dev/stderr are opened again",
			script: `docker run --rm busybox sh -c 'echo out >/dev/stdout'; docker run --rm -u 1000 busybox sh -c 'echo user >/dev/stdout'
				docker run -d --name box busybox sleep 1000 >/dev/null; docker exec box sh -c 'echo err >/dev/stderr' 2>&1`,
			want: "out\nuser\nerr\n",
		},
		{name: "userns-remap: --userns host", script: `[ "$(docker run --rm --userns host busybox readlink /proc/self/ns/user)" = "$(readlink /proc/self/ns/user)" ] && echo host`, want: "host\n"},
	})
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"slices"
	"testing"
)

func TestNerdctl(t *testing.T) {
	compare(t, newNerdctl(t), slices.Concat(alike("nerdctl"), nerdctlRun(), nerdctlLogs(), nerdctlTerminal(), nerdctlExec(), nerdctlStop(),
		nerdctlLimits(), nerdctlSecurity(), nerdctlFiles(), nerdctlCompose()))
}

// nerdctlBox runs a container called box.
const nerdctlBox = "nerdctl run -d --name box busybox sleep 1000 >/dev/null; "

func nerdctlRun() []clientCase {
	return []clientCase{
		{name: "run", script: `nerdctl run --rm busybox echo hello`, want: "hello\n"},
		{
			name:   "a program that is absent, one that is not executable",
			script: `nerdctl run --name box busybox nothing || echo $?; nerdctl run --name file busybox /etc/passwd || echo $?; nerdctl run --rm busybox nothing || echo $?`,
			want:   "1\n1\n1\n",
			mask:   words, reason: wordsReason,
		},
		{
			name: "-i", // the runc shim loses an end of the input that comes before that of Create
			script: `end() { [ $RUNTIME = sandbox ] || await running nerdctl inspect -f '{{.State.Status}}' box; }
				for n in 1 2 3 4 5 6; do (echo hello $n; end) | nerdctl run --rm -i --name box busybox cat; done`,
			want: "hello 1\nhello 2\nhello 3\nhello 4\nhello 5\nhello 6\n",
		},
		{name: "create, start -a", script: `nerdctl create --name box busybox sh -c 'echo hello; exit 4' >/dev/null; nerdctl start -a box || nerdctl wait box`, want: "hello\n4\n"},
		{
			name: "-e, --env-file, --label, -w, -h, --entrypoint",
			script: `printf 'A=1\nB=two words\n' >$W/env
				nerdctl run --name box --env-file $W/env -e C=3 --label l=v -w /tmp -h name --entrypoint sh busybox -c 'echo "$A $B $C $(pwd) $(hostname)"'
				nerdctl inspect -f '{{.Config.Labels.l}}' box; nerdctl ps -a --filter label=l=v --format '{{.Names}} {{.Image}}'`,
			want: "1 two words 3 /tmp name\nv\nbox docker.io/library/busybox:latest\n",
		},
		{name: "--rm removes, also after a failure", script: `nerdctl run --rm busybox false || echo $?; nerdctl run --rm busybox nothing 2>/dev/null || echo $?; nerdctl ps -aq`, want: "1\n1\n"},
		{
			name: "--cidfile, --pidfile, ps, rename",
			script: `nerdctl run -d --name box --cidfile $W/cid --pidfile $W/pid busybox sleep 1000 >/dev/null; [ "$(cat $W/pid)" = "$(nerdctl inspect -f '{{.State.Pid}}' box)" ] && echo pid
				[ "$(cat $W/cid)" = "$(nerdctl ps -q --no-trunc)" ] && echo cid; nerdctl rename box other; nerdctl ps --format '{{.Names}} {{.Status}}'; nerdctl exec other echo hello`,
			want: "pid\ncid\nother Up\nhello\n",
		},
		{name: "--rootfs", script: `mkdir $W/r; nerdctl create --name box busybox >/dev/null; nerdctl export box | tar x -C $W/r; nerdctl run --rm --rootfs $W/r /bin/echo hello`, want: "hello\n"},
		{
			name: "--init",
			script: `nerdctl run -d --init --init-binary $TINI --name box busybox sh -c 'sleep 0.1 & exec sleep 1000' >/dev/null
				await "/sbin/tini-static -- sh -c sleep 0.1 & exec sleep 1000
sleep 1000" processes box; nerdctl stop -t 20 box; nerdctl wait box`,
			want: "box\n143\n",
		},
		{
			name: "ten at once",
			script: `for n in $(seq 10); do nerdctl run --name box$n busybox sh -c "echo $n; exit $n" >$W/$n || echo $? >>$W/$n & done
				wait; for n in $(seq 10); do [ "$(echo $(cat $W/$n))" = "$n $n" ] || cat $W/$n; done; nerdctl ps -aq | wc -l`,
			want: "10\n",
		},
		{
			name:   "a path in --runtime is that of a runc",
			script: `"$NERDCTL" run --rm --runtime $(command -v runc) busybox echo hello; "$NERDCTL" run --rm --runtime $(command -v runc) busybox sh -c 'exit 3' || echo $?`,
			want:   "hello\n3\n",
		},
		{
			name:   "--cgroup-manager systemd: what is warned of",
			script: `"$NERDCTL" --cgroup-manager systemd create --name box --runtime io.containerd.sandbox.v1 busybox 2>&1 >/dev/null | grep -o 'msg=.*'; nerdctl rm box`,
			want:   `msg="cannot set cgroup manager to \"systemd\" for runtime \"io.containerd.sandbox.v1\""` + "\nbox\n",
		},
	}
}

func nerdctlLogs() []clientCase {
	return []clientCase{
		{
			name: "logs, stderr apart",
			script: `nerdctl run --name box busybox sh -c 'echo out; echo err >&2; echo end' >/dev/null 2>&1
				nerdctl logs box 2>/dev/null; nerdctl logs box 2>&1 >/dev/null`,
			want: "out\nend\nerr\n",
		},
		{
			name:   "logs of ten that end at once", // on a busy machine nerdctl loses some, with any shim
			script: `right=0; for n in $(seq 10); do nerdctl run --name box$n busybox echo hello $n >/dev/null; log=$(nerdctl logs box$n); case "$log" in "hello $n") right=$((right + 1)) ;; "") ;; *) echo "$log" ;; esac; done; [ $right -ge 8 ] && echo eight`,
			want:   "eight\n",
		},
		{
			name:   "logs of a detached one, and after start again",
			script: `nerdctl run -d --name box busybox echo hello >/dev/null; nerdctl wait box; await hello nerdctl logs box; nerdctl start box; nerdctl wait box; await 2 sh -c 'nerdctl logs box | wc -l'`,
			want:   "0\nbox\n0\n",
		},
		{
			name:   "logs of 20,001 lines, in order, --tail", // of one that goes on: nerdctl drops the end of large outputs, with any shim
			script: `seq 20001 >$W/want; nerdctl run -d --name box busybox sh -c 'seq 20001; exec sleep 1000' >/dev/null; await same sh -c 'nerdctl logs box | cmp - $W/want && echo same'; nerdctl logs --tail 1 box`,
			want:   "20001\n",
		},
		{name: "a flood of 20 MB", script: `nerdctl run -d --name box busybox sh -c 'yes 0123456789abcdef | head -c 20000000; exec sleep 1000' >/dev/null; await 20000000 sh -c 'nerdctl logs box | wc -c'`},
		{
			name: "--log-driver none, of a file",
			script: `nerdctl run --log-driver none --name box busybox echo hello; nerdctl logs box 2>/dev/null || echo $?
				nerdctl run -d --log-driver file://$W/log --name other busybox echo hello >/dev/null; await hello cat $W/log`,
			want: "hello\n1\n",
		},
		{
			name:   "--log-opt max-size, max-file",
			script: `nerdctl run -d --log-opt max-size=100K --log-opt max-file=2 --name box busybox sh -c 'seq 20000; exec sleep 1000' >/dev/null; await 20000 nerdctl logs --tail 1 box; ls $(dirname $(nerdctl inspect -f '{{.LogPath}}' box)) | grep -c json.log`,
			want:   "2\n",
		},
	}
}

func nerdctlTerminal() []clientCase {
	return []clientCase{
		{
			name: "-t",
			run: func(s *session) {
				s.terminal("run", "--rm", "-t", "busybox", "sh", "-c", "tty; echo err >&2; test -t 0 && test -t 1 && test -t 2 && echo terminal; sleep 1").ends(0) // nerdctl says if it cannot set the size
			},
		},
		{
			name: "run -it, control-C, control-D",
			run: func(s *session) {
				sh := s.terminal("run", "-it", "--name", "box", "busybox")
				sh.shows(1, prompt, prompt)
				sh.Types("echo sleeps; sleep 1000\n")
				sh.shows(1, "sleeps\r\n", "sleeps\r\n")
				sh.interrupts(2)
				sh.Types("\x04")
				sh.ends(130)
				s.Forget() // how often it took another one differs
			},
		},
		{
			name:   "run -dt, logs",
			script: `nerdctl run -dt --name box busybox sh -c 'tty; exec sleep 1000' >/dev/null; await 1 sh -c 'nerdctl logs box | grep -c /dev/pts/0'; nerdctl exec box readlink /proc/1/fd/0`,
			want:   "/dev/pts/0\n",
		},
		{
			name: "exec -it, its exit code",
			run: func(s *session) {
				s.Shell(nerdctlBox)
				sh := s.terminal("exec", "-it", "box", "sh")
				sh.shows(1, prompt, prompt)
				sh.Types("tty; stty size; exit 5\n")
				sh.shows(1, "/dev/pts/0\r\n30 90\r\n", "\r\n") // nerdctl's line about the end follows at once
				sh.shows(1, "exec failed with exit code 5", "\r\n")
				sh.ends(1)
			},
		},
		{
			name: "exec -it: the end of the container",
			run: func(s *session) {
				s.Shell(nerdctlBox)
				sh := s.terminal("exec", "-it", "box", "sh")
				sh.shows(1, prompt, prompt)
				s.Quiet("nerdctl kill box")
				sh.shows(1, "exec failed with exit code 137", "\r\n")
				sh.ends(1)
			},
		},
	}
}

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"regexp"
	"strings"
	"testing"
)

// words are the errors of starts, which have the same exit status and another text.
var words = regexp.MustCompile(`(?m)(failed to create (task|shim)|OCI runtime exec failed|failed to start).*`)

const wordsReason = "the words of the error"

func TestDocker_Run(t *testing.T) {
	compare(t, shared, append(alike("docker"), []clientCase{
		{
			name: "run",
			run: func(s *session) {
				size := s.LogSize()
				s.Shell("docker run --rm busybox true")
				if log := s.LogFrom(size); strings.Contains(log, "init by libcontainer") {
					s.Fatalf("the launcher did not start it:\n%s", log)
				}
			},
			script: `docker run --rm busybox echo hello`,
			want:   "hello\n",
		},
		{name: "a program that is absent: 127", script: `docker run --name box busybox nothing || echo $?`, want: "127\n", mask: words, reason: wordsReason},
		{name: "a program that is not executable: 126", script: `docker run --name box busybox /etc/passwd || echo $?; docker run --name dir busybox /etc || echo $?`, want: "126\n126\n", mask: words, reason: wordsReason},
		{name: "-i", script: `echo hello | docker run --rm -i busybox cat`, want: "hello\n"},
		{name: "-t", script: `docker run --rm -t busybox sh -c 'tty; echo err >&2; test -t 0 && test -t 1 && test -t 2 && echo terminal'`, want: "/dev/pts/0\r\nerr\r\nterminal\r\n"},
		{
			name: "attach",
			script: `docker run -di --name box busybox sh -c 'read line; echo got $line; echo err >&2; exit 3' >/dev/null
				(echo hello; rest 1) | docker attach box 2>$W/err || echo $?; cat $W/err`,
			want: "got hello\n3\nerr\n",
		},
		{
			name: "attach twice",
			script: `docker run -di --name box busybox sh -c 'read line; echo got $line' >/dev/null
				docker attach --no-stdin box >$W/second & rest 1; (echo hello; rest 1) | docker attach box; wait; cat $W/second`,
			want: "got hello\ngot hello\n",
		},
		{name: "create, start -a", script: `docker create --name box busybox sh -c 'echo hello; exit 4' >/dev/null; docker start -a box || echo $?`, want: "hello\n4\n"},
		{
			name: "-e, --env-file, --label, -w, -h, --entrypoint",
			script: `printf 'A=1\nB=two words\n' >$W/env
				docker run --name box --env-file $W/env -e C=3 --label l=v -w /tmp -h name --entrypoint sh busybox -c \
					'echo "$A $B $C $(pwd) $(hostname)"'
				docker inspect -f '{{.Config.Labels.l}}' box`,
			want: "1 two words 3 /tmp name\nv\n",
		},
		{
			name: "--rm removes, also after a failure",
			script: `docker run --rm busybox false || echo $?; docker run --rm busybox nothing 2>/dev/null || echo $?
				await "" docker ps -aq; docker ps -aq`,
			want: "1\n127\n",
		},
		{
			name: "thirty at once",
			script: `for n in $(seq 30); do docker run --name box$n busybox sh -c "echo $n; exit $n" >$W/$n || echo $? >>$W/$n & done
				wait; for n in $(seq 30); do [ "$(echo $(cat $W/$n))" = "$n $n" ] || cat $W/$n; done; docker ps -aq | wc -l`,
			want: "30\n",
			mask: regexp.MustCompile(`(?m)^ +"(IPAddress|Gateway)": .*`), reason: "who was first has the first address",
		},
	}...))
}

func TestDocker_Logs(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name: "logs, stderr apart",
			script: `docker run --name box busybox sh -c 'echo out; echo err >&2; printf end' >/dev/null 2>&1
				docker logs box 2>/dev/null; echo; docker logs box 2>&1 >/dev/null; docker logs --tail 1 box 2>/dev/null`,
			want: "out\nend\nerr\nend",
		},
		{
			name: "logs of 20,001 lines, in order",
			script: `seq 20001 >$W/want; docker run --name box busybox seq 20001 | cmp - $W/want
				docker logs box | cmp - $W/want && echo same`,
			want: "same\n",
		},
		{
			name: "a flood of 20 MB",
			script: `docker run --name box busybox sh -c 'yes 0123456789abcdef | head -c 20000000' | wc -c
				docker logs box | wc -c; docker exec box true 2>/dev/null || echo ended`,
			want: "20000000\n20000000\nended\n",
		},
		{
			name: "a flood that nobody reads",
			script: `docker run -d --name box busybox sh -c 'yes 0123456789abcdef | head -c 5000000; echo; echo end' >/dev/null
				docker wait box; docker logs --tail 1 box`,
			want: "0\nend\n",
		},
		{name: "a long line, and zeroes", script: `docker run --name box busybox sh -c 'head -c 100000 /dev/zero; echo' | wc -c; docker logs box | wc -c`, want: "100001\n100001\n"},
		{
			name: "--log-driver local, none",
			script: `docker run --log-driver local --name box busybox echo hello; docker logs box
				docker run --log-driver none --name other busybox echo hello; docker logs other 2>/dev/null || echo $?`,
			want: "hello\nhello\nhello\n1\n",
		},
	})
}

// alike are the cases that Docker and nerdctl, which has its commands, share.
func alike(command string) []clientCase {
	const box = "docker run -d --name box busybox sleep 1000 >/dev/null; "
	cases := []clientCase{
		{name: "exit codes", script: `for n in 0 1 7 126 255; do docker run --rm busybox sh -c "exit $n" && echo 0 || echo $?; done`, want: "0\n1\n7\n126\n255\n"},
		{name: "-i with 3 MB", script: `head -c 3000000 /dev/zero | docker run --rm -i busybox wc -c`, want: "3000000\n"},
		{name: "no -i: the input is empty", script: `echo hello | docker run --rm busybox cat; echo end`, want: "end\n"},
		{name: "detach, wait", script: `docker run -d --name box busybox sh -c 'sleep 0.3; exit 9' >/dev/null; docker wait box; docker wait box`, want: "9\n9\n"},
		{name: "stderr apart", script: `docker run --rm busybox sh -c 'echo out; echo err >&2' 2>$W/err; cat $W/err`, want: "out\nerr\n"},
		{name: "start again", script: `docker run --name box busybox sh -c 'echo x >>/f; cat /f'; docker start -a box`, want: "x\nx\nx\n"},
		{name: "exit by a signal", script: `docker run --name box --pid host busybox sh -c 'kill -9 $$' || echo $?`, want: "137\n"},
		{name: "exec of 5 MB of output", script: box + `docker exec box sh -c 'yes 0123456789 | head -c 5000000' | wc -c`, want: "5000000\n"},
		{name: "logs -f", script: `docker run -d --name box busybox sh -c 'for n in 1 2 3; do echo $n; sleep 0.2; done' >/dev/null; docker logs -f box`, want: "1\n2\n3\n"},
		{
			name: "exec -i",
			script: box + `for n in 1 2 3; do echo hello | docker exec -i box cat; done; echo hello | docker exec box cat
				head -c 3000000 /dev/zero | docker exec -i box wc -c`,
			want: "hello\nhello\nhello\n3000000\n",
		},
		{name: "exec -d", script: box + `docker exec -d box sh -c 'echo hello >/f; exec sleep 1001'; await hello docker exec box cat /f; processes box`, want: "sleep 1000\nsleep 1001\n"},
		{
			name:   "restart",
			script: `docker run -d --name box busybox sh -c 'echo start; exec sleep 1000' >/dev/null; docker restart -t 0 box; await 2 sh -c 'docker logs box | wc -l'; docker inspect -f '{{.State.Running}}' box`,
			want:   "box\ntrue\n",
		},
		{
			name:   "--cpuset-cpus, update, exec",
			script: `docker run -d --cpuset-cpus 0 --name box busybox sleep 1000 >/dev/null; docker exec box grep Cpus_allowed_list /proc/1/status; docker update --cpuset-cpus 1 box >/dev/null; docker exec box grep -h Cpus_allowed_list /proc/1/status /proc/self/status`,
			want:   "Cpus_allowed_list:\t0\nCpus_allowed_list:\t1\nCpus_allowed_list:\t1\n",
		},
		{
			name:   "update that is refused changes nothing",
			script: `docker run -d --cpuset-cpus 0 --name box busybox sleep 1000 >/dev/null; docker update --cpuset-cpus 999 box 2>/dev/null || echo $?; docker exec box grep Cpus_allowed_list /proc/self/status`,
			want:   "1\nCpus_allowed_list:\t0\n",
		},
		{
			name:   "capabilities and the seccomp profile of every container",
			script: `docker run --rm busybox grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|^Seccomp:' /proc/self/status`,
			want: "CapInh:\t0000000000000000\nCapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\n" +
				"CapAmb:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t2\n",
		},
		{
			name: "--cap-drop, --cap-add",
			script: `docker run --rm --cap-drop ALL busybox grep CapEff /proc/self/status; docker run --rm --cap-drop ALL --cap-add NET_ADMIN busybox sh -c 'grep CapEff /proc/self/status; ip link set lo mtu 1400 && echo set'
				docker run --rm --cap-add SYS_ADMIN --security-opt apparmor=unconfined busybox sh -c 'mount -t tmpfs none /tmp && echo mounted'`,
			want: "CapEff:\t0000000000000000\nCapEff:\t0000000000001000\nset\nmounted\n",
		},
		{
			name:   "--read-only, --tmpfs",
			script: `docker run --rm --read-only busybox touch /f 2>/dev/null || echo $?; docker run --rm --read-only --tmpfs /tmp:size=1m,mode=1777,noexec busybox sh -c 'touch /tmp/f && echo touched; grep -o " /tmp .*noexec" /proc/mounts | cut -d" " -f2'`,
			want:   "1\ntouched\n/tmp\n",
		},
		{
			name:   "-v of a directory and a file, :ro",
			script: `mkdir $W/d; echo x >$W/f; docker run --rm -v $W/d:/d -v $W/f:/f:ro busybox sh -c 'cat /f; echo y >/d/new; echo z >/f' 2>/dev/null || echo $?; cat $W/d/new $W/f`,
			want:   "x\n1\ny\nx\n",
		},
		{
			name: "named and anonymous volumes",
			script: `docker run --rm -v named:/v busybox sh -c 'echo x >/v/f'; docker run --rm -v named:/v:ro busybox sh -c 'cat /v/f; touch /v/g' 2>/dev/null || echo $?
				docker run --name box -v /anonymous busybox sh -c 'echo y >/anonymous/f'; docker run --rm --volumes-from box busybox cat /anonymous/f; docker volume rm named`,
			want: "x\n1\ny\nnamed\n",
		},
		{
			name:   "diff, export",
			script: `docker run --name box busybox sh -c 'echo x >/tmp/f; rm /etc/group'; docker diff box | grep -E '/tmp/f|/etc/group' | sort; docker export box | tar x -O tmp/f`,
			want:   "A /tmp/f\nD /etc/group\nx\n",
		},
		{
			name: "detach keys, attach",
			run: func(s *session) {
				sh := s.terminal("run", "-it", "--name", "box", "busybox")
				sh.shows(1, prompt, prompt)
				sh.Types("\x10\x11")
				sh.ends(0)
				sh = s.terminal("attach", "box")
				sh.Types("echo again; exit 4\n")
				sh.ends(4)
				s.Forget() // the prompt comes in one or in the other
			},
			script: `docker inspect -f '{{.State.ExitCode}}' box`,
			want:   "4\n",
		},
	}
	for i := range cases {
		cases[i].script = strings.ReplaceAll(cases[i].script, "docker", command)
	}
	return cases
}

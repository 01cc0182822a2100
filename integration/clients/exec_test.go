// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import "testing"

func TestDocker_Exec(t *testing.T) {
	const box = "docker run -d --name box busybox sleep 1000 >/dev/null; "
	compare(t, shared, []clientCase{
		{name: "exec, its exit codes", script: box + `docker exec box echo hello; for n in 0 1 42 255; do docker exec box sh -c "exit $n" || echo $?; done`, want: "hello\n1\n42\n255\n"},
		{name: "exec -t", script: box + `docker exec -t box sh -c 'tty; test -t 1 && test -t 2 && echo terminal'; docker exec box tty || echo $?`, want: "/dev/pts/0\r\nterminal\r\nnot a tty\n1\n"},
		{
			name: "exec -u",
			script: box + `docker exec -u tester box id; docker exec -u 1000:4444 box id; docker exec -u 77 box id
				docker exec -u nobodyy box id 2>$W/err || echo $?`,
			want: "uid=1000(tester) gid=1000(tester) groups=1000(tester),4444(extra)\n" +
				"uid=1000(tester) gid=4444(extra) groups=4444(extra)\nuid=77 gid=0(root) groups=0(root)\n1\n",
		},
		{
			name: "exec -w, -e, --env-file",
			script: box + `echo B=2 >$W/env; docker exec -w /tmp -e A=1 --env-file $W/env box sh -c 'echo $A $B $(pwd)'
				docker exec -w /nothing box pwd >$W/out || echo $?`,
			want: "1 2 /tmp\n127\n",
		},
		{name: "exec of what is absent: 127, not executable: 126", script: box + `for program in nothing /etc/passwd /etc; do docker exec box $program >$W/out || echo $?; done`, want: "127\n126\n126\n"},
		{name: "exec --privileged", script: box + `docker exec box grep CapEff /proc/self/status; docker exec --privileged box ip link set lo mtu 1400 && echo set`, want: "CapEff:\t00000000a80425fb\nset\n"},
		{name: "exec by a signal, its stderr", script: box + `docker exec box sh -c 'echo err >&2; kill -TERM $$' 2>$W/err || echo $?; cat $W/err`, want: "143\nerr\n"},
		{name: "exec that leaves a process behind", script: box + `docker exec box sh -c 'sleep 999 >/dev/null 2>&1 & echo hello'; processes box`, want: "hello\nsleep 1000\nsleep 999\n"},
		{
			name: "thirty execs at once",
			script: box + `for n in $(seq 30); do docker exec box sh -c "echo $n; exit $n" >$W/$n || echo $? >>$W/$n & done; wait
				for n in $(seq 30); do [ "$(echo $(cat $W/$n))" = "$n $n" ] || cat $W/$n; done; echo end`,
			want: "end\n",
		},
		{
			name: "exec in a container that ended, is paused, ends",
			script: box + `docker pause box; docker exec box true 2>$W/err || echo $?; docker unpause box
				docker exec box sleep 1000 & await 2 docker exec box sh -c 'pidof sleep | wc -w'; docker kill box; wait $! || echo $?
				docker exec box true 2>$W/err || echo $?; cat $W/err | sed 's/[0-9a-f]\{64\}/ID/'`,
			want: "box\n1\nbox\nbox\n137\n1\nError response from daemon: container ID is not running\n",
		},
	})
}

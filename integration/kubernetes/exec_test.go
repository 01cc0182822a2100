// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"testing"
)

func TestKubernetes_Exec(t *testing.T) {
	compare(t, []kubeCase{
		{
			name:   "exec, its exit codes, stderr apart",
			pods:   box(),
			script: `ready box; for n in 0 1 42 255; do kubectl exec box -- sh -c "exit $n" 2>$W/err || echo $?; done; kubectl exec box -- sh -c 'echo out; echo err >&2' 2>$W/err; cat $W/err`,
			want:   "1\n42\n255\nout\nerr\n",
		},
		{
			name:   "exec -i, also of 3 MB",
			pods:   box(),
			script: `ready box; echo hello | kubectl exec -i box -- cat; head -c 3000000 /dev/zero | kubectl exec -i box -- wc -c; kubectl exec box -- head -c 5000000 /dev/zero | wc -c`,
			want:   "hello\n3000000\n5000000\n",
		},
		{
			name: "exec -it: size, control-C, exit code",
			pods: box(),
			run: func(s *session) {
				s.Quiet("ready box")
				sh := s.terminal("exec", "-it", "box", "--", "sh")
				sh.asks("stty size", "30 90")
				sh.Resizes(50, 100)
				sh.asks("stty size", "50 100")
				sh.Types("sleep 1001\r")
				s.Quiet(`kubectl exec box -- sh -c 'until ps | grep -q "[s]leep 1001"; do sleep 0.1; done'`)
				sh.Types("\x03")
				sh.asks("echo $((6*7))", "42")
				sh.Types("exit 7\r")
				sh.Ends(7)
			},
		},
		{
			name:   "exec in the second container, and of what is absent",
			pods:   map[string]string{"box": `containers: [{name: a, command: [sleep, "1000"]}, {name: b, command: [sleep, "1001"]}]`},
			script: `ready box; kubectl exec box -c b -- cat /proc/1/cmdline | tr '\0' ' '; echo; kubectl exec box -c a -- nothing 2>/dev/null || echo $?`,
			want:   "sleep 1001 \n1\n",
		},
		{
			name:   "thirty execs at once",
			pods:   box(),
			script: `ready box; for n in $(seq 30); do kubectl exec box -- sh -c "sleep 0.2; echo $n" >$W/$n & done; wait; for n in $(seq 30); do cat $W/$n; done | sort -n | tr '\n' ' '`,
			want:   "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 ",
		},
		{
			name: "an exec ends with its client",
			pods: box(),
			script: `ready box; kubectl exec -it box -- sleep 1001 >/dev/null 2>&1 </dev/null & pid=$!
				kubectl exec box -- sh -c 'until ps | grep -q "[s]leep 1001"; do sleep 0.1; done'; kill $pid; wait $pid || echo ended`,
			want: "ended\n",
		},
		{
			name: "attach: input and output",
			pods: map[string]string{"box": `containers: [{name: c, stdin: true, command: [sh, -c, "while read -r line; do echo got $line; done; sleep 1000"]}]`},
			script: `ready box; mkfifo $W/in; kubectl attach -i -q box <$W/in >$W/out & exec 3>$W/in; echo one >&3; until grep -q "got one" $W/out; do sleep 0.1; done
				echo two >&3; until grep -q "got two" $W/out; do sleep 0.1; done; kill $!; cat $W/out; kubectl logs box`,
			want: "got one\ngot two\ngot one\ngot two\n",
		},
		{
			name: "attach -it",
			pods: map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, stdin: true, tty: true, command: [sh]}]}`},
			run: func(s *session) {
				s.Quiet("ready box")
				sh := s.terminal("attach", "-it", "box")
				sh.Types("\r")
				sh.Types("tty; echo $((6*7))\r")
				sh.shows("42")
				sh.Types("exit 6\r")
				sh.Ends(0)
			},
			script: `phase Failed box; get box '{.status.containerStatuses[0].state.terminated.exitCode}'`,
			want:   "6\n",
		},
		{
			name:   "stdinOnce: the end of the client is the end of the input",
			pods:   map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, stdin: true, stdinOnce: true, command: [sh, -c, "wc -c"]}]}`},
			script: `ready box; head -c 100000 /dev/zero | kubectl attach -i -q box >/dev/null; phase Succeeded box; kubectl logs box`,
			want:   "100000\n",
		},
		{
			name: "logs --previous", changes: true,
			pods:   map[string]string{"box": `containers: [{name: c, command: [sh, -c, "echo run; sleep 1; exit 1"]}]`},
			script: `await run kubectl logs --previous box`,
		},
		{
			name: "logs: --tail, --since, -f, --all-containers",
			pods: map[string]string{
				"lines": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "seq 20000"]}]}`,
				"two":   `{containers: [{name: a, command: [sh, -c, "echo a; exec sleep 1000"]}, {name: b, command: [sh, -c, "echo b; exec sleep 1000"]}]}`,
			},
			script: `phase Succeeded lines; kubectl logs lines >$W/got; seq 20000 | cmp - $W/got; kubectl logs --tail=2 lines; kubectl logs -f lines | wc -l
				ready two; kubectl logs two --all-containers | sort; kubectl logs --since=1h lines | wc -l`,
			want: "19999\n20000\n20000\na\nb\n20000\n",
		},
		{
			name:   "a line of 3 MB, and many lines",
			pods:   map[string]string{"box": `{restartPolicy: Never, containers: [{name: c, command: [sh, -c, "head -c 3000000 /dev/zero | tr '\\0' x; echo; seq 50000"]}]}`},
			script: `phase Succeeded box; kubectl logs box | wc -c`,
			want:   "3288895\n",
		},
		{
			name: "cp, both ways",
			pods: box(),
			script: `ready box; mkdir $W/d; seq 100000 >$W/d/numbers; ln -s numbers $W/d/link; kubectl cp $W/d box:/tmp/d; kubectl exec box -- md5sum /tmp/d/numbers | cut -d ' ' -f 1 >$W/a
				md5sum $W/d/numbers | cut -d ' ' -f 1 | cmp - $W/a; kubectl cp box:/tmp/d/numbers $W/back >/dev/null; cmp $W/back $W/d/numbers; echo same`,
			want: "same\n",
		},
		{
			name: "port-forward",
			pods: map[string]string{"box": `containers: [{name: c, readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1},
				command: [sh, -c, "mkdir /www; seq 200000 >/www/f; exec busybox httpd -f -p 8080 -h /www"]}]`},
			script: `ready box; kubectl port-forward box :8080 >$W/port & pid=$!
				until grep -q '127.0.0.1:' $W/port; do sleep 0.1; done; port=$(sed -n 's/.*127.0.0.1:\([0-9]*\) .*/\1/p' $W/port)
				for n in 1 2 3; do $BUSYBOX wget -q -O - http://127.0.0.1:$port/f | md5sum; done >$W/sums; kill $pid; sort -u $W/sums | wc -l; seq 200000 | md5sum | cmp - $W/sums 2>&1 | grep -c differ || true`,
			want: "1\n0\n",
		},
		{
			name: "an ephemeral container, with the processes of another",
			pods: box(),
			script: `ready box; kubectl debug box --image=shim.test/busybox:latest --image-pull-policy=IfNotPresent --container=debug --target=c -- sh -c 'echo ready; sleep 1001' >/dev/null 2>&1
				await ready kubectl logs box -c debug; kubectl exec box -c debug -- sh -c 'cat /proc/1/cmdline | tr "\0" " "'; echo`,
			want: "sleep 1000 \n",
		},
		{
			name: "statistics: those of the kubelet, and of cAdvisor",
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "while :; do :; done"], resources: {limits: {cpu: 100m, memory: 64Mi}}}]`},
			script: `ready box; cat >$W/stat <<-'END'
				"$KUBECTL" get --raw /api/v1/nodes/node/proxy/stats/summary | tr -d ' \n' | grep -o "\"podRef\":{\"name\":\"box\",\"namespace\":\"$NAMESPACE\".*" | grep -o '"containers":\[.*' | grep -oE '"usageCoreNanoSeconds":[1-9]|"workingSetBytes":[1-9]|"podRef"' | sed '/podRef/,$d' | cut -d: -f 1 | sort -u | tr '\n' ' '
				END
				PATIENCE=60 await '"usageCoreNanoSeconds" "workingSetBytes" ' sh $W/stat`,
		},
		{
			name: "statistics of the network", pods: box(),
			script: `ready box; cat >$W/stat <<-'END'
				"$KUBECTL" get --raw /api/v1/nodes/node/proxy/stats/summary | tr -d ' \n' | grep -o "\"podRef\":{\"name\":\"box\",\"namespace\":\"$NAMESPACE\".*" | grep -oE '"rxBytes":[0-9]|"podRef"' | sed '1d;/podRef/,$d' | cut -d: -f 1 | sort -u
				"$KUBECTL" get --raw /api/v1/nodes/node/proxy/metrics/cadvisor | grep "^container_network_receive_bytes_total{.*namespace=\"$NAMESPACE\"" | cut -d '{' -f 1 | sort -u
				END
				PATIENCE=60 await "$(printf '"rxBytes"\ncontainer_network_receive_bytes_total')" sh $W/stat`,
			fails: map[string]string{pauseless: "the kubelet has none: cAdvisor looks for the pause container"},
		},
	})
}

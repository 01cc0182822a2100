// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import "regexp"

func nerdctlExec() []clientCase {
	const box = nerdctlBox
	return []clientCase{
		{
			name:   "exec, its exit codes",
			script: box + `nerdctl exec box echo hello; for n in 0 1 42 255; do nerdctl exec box sh -c "exit $n" 2>$W/err || grep -o 'code [0-9]*' $W/err; done`,
			want:   "hello\ncode 1\ncode 42\ncode 255\n",
		},
		{
			name:   "exec -u, -w, -e, --env-file",
			script: box + `echo B=2 >$W/env; nerdctl exec -u tester -w /tmp -e A=1 --env-file $W/env box sh -c 'echo $A $B $(pwd); id'; nerdctl exec -u 77 box id; nerdctl exec -u nobodyy box id 2>/dev/null || echo $?`,
			want:   "1 2 /tmp\nuid=1000(tester) gid=1000(tester) groups=1000(tester),4444(extra)\nuid=77 gid=0(root) groups=0(root)\n1\n",
		},
		{
			name:   "exec of what is absent, and of what is not executable",
			script: box + `for program in nothing /etc/passwd /etc; do nerdctl exec box $program 2>/dev/null || echo $?; done; nerdctl exec -w /nothing box pwd 2>/dev/null || echo $?`,
			want:   "1\n1\n1\n1\n",
		},
		{name: "exec by a signal, its stderr", script: box + `nerdctl exec box sh -c 'echo err >&2; kill -TERM $$' 2>$W/err || grep -oE '^err|code [0-9]*' $W/err`, want: "err\ncode 143\n"},
		{name: "exec --privileged", script: box + `nerdctl exec box ip link set lo mtu 1400 2>/dev/null || echo $?; nerdctl exec --privileged box ip link set lo mtu 1400 && echo set`, want: "1\nset\n"},
		{
			name: "ten execs at once",
			script: box + `for n in $(seq 10); do nerdctl exec box sh -c "echo $n; exit $n" >$W/$n 2>$W/err$n || grep -o 'code [0-9]*' $W/err$n >>$W/$n & done; wait
				for n in $(seq 10); do [ "$(echo $(cat $W/$n))" = "$n code $n" ] || cat $W/$n; done; echo end`,
			want: "end\n",
		},
		{
			name: "exec in a container that is paused, ends, has ended",
			script: box + `nerdctl pause box; nerdctl exec box true 2>/dev/null || echo $?; nerdctl unpause box
				nerdctl exec box sleep 1000 2>$W/err & await 2 nerdctl exec box sh -c 'pidof sleep | wc -w'; nerdctl kill box; wait $! || grep -o 'code [0-9]*' $W/err; nerdctl exec box true 2>/dev/null || echo $?`,
			want: "box\n1\nbox\ncode 137\n1\n",
		},
	}
}

func nerdctlStop() []clientCase {
	const ready = `sh -c 'trap "echo usr1" USR1; trap "echo bye; exit 5" TERM; echo ready; while :; do sleep 0.1; done' >/dev/null; await ready nerdctl logs box; `
	return []clientCase{
		{name: "kill", script: nerdctlBox + `nerdctl kill box; nerdctl wait box; nerdctl kill box 2>/dev/null || echo $?`, want: "137\n1\n"},
		{
			name: "kill -s",
			script: `nerdctl run -d --name box busybox ` + ready + `nerdctl kill -s USR1 box; await "ready
usr1" nerdctl logs box; nerdctl kill -s TERM box; nerdctl wait box`,
			want: "5\n",
		},
		{name: "stop with grace", script: `nerdctl run -d --name box busybox ` + ready + `nerdctl stop box; nerdctl wait box; nerdctl logs box`, want: "box\n5\nready\nbye\n"},
		{
			name: "stop of one that does not listen, --stop-signal",
			script: `nerdctl run -d --name box busybox sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done' >/dev/null; await ready nerdctl logs box; nerdctl stop -t 1 box; nerdctl wait box
				nerdctl run -d --stop-signal QUIT --name other busybox sh -c 'trap "exit 8" QUIT; echo ready; while :; do sleep 0.1; done' >/dev/null; await ready nerdctl logs other; nerdctl stop other; nerdctl wait other`,
			want: "box\n137\nother\n8\n",
		},
		{
			name:   "rm, rm -f, container prune",
			script: nerdctlBox + `nerdctl rm box 2>/dev/null || echo $?; nerdctl rm -f box; nerdctl run --name other busybox true; nerdctl container prune -f >/dev/null; nerdctl ps -aq`,
			want:   "1\nbox\n",
		},
		{
			name:   "the end of init ends all",
			script: `nerdctl run -d --name box busybox sh -c "sleep 1000 & sleep $SLOWNESS" >/dev/null; nerdctl exec box sleep 1000 2>$W/err || grep -o 'code [0-9]*' $W/err; nerdctl wait box`,
			want:   "code 137\n0\n",
		},
		{
			name: "--restart always, on-failure, unless-stopped",
			script: `nerdctl run -d --name box --restart always busybox sh -c 'echo x; exec sleep 1000' >/dev/null; kill -9 $(nerdctl inspect -f '{{.State.Pid}}' box); await 2 sh -c 'nerdctl logs box | wc -l'; nerdctl stop -t 0 box
				nerdctl run -d --name two --restart on-failure:2 busybox sh -c 'echo x; exit 3' >/dev/null; await 3 sh -c 'nerdctl logs two | wc -l'; await '2 exited' nerdctl inspect -f '{{.RestartCount}} {{.State.Status}}' two; nerdctl rm -f two
				nerdctl run -d --name three --restart unless-stopped busybox sleep 1000 >/dev/null; kill -9 $(nerdctl inspect -f '{{.State.Pid}}' three); await 1 nerdctl inspect -f '{{.RestartCount}}' three
				await again nerdctl exec three echo again; nerdctl stop -t 0 three`,
			want: "box\ntwo\nthree\n",
			mask: regexp.MustCompile(`"(RestartCount|ExitCode)": \d+`), reason: "the monitor of containerd starts it at any time",
		},
		{
			name: "events, in order", // the runc shim may end before it has published an exit or a delete
			script: `nerdctl events --format '{{.Topic}}' >$W/events & rest 1; nerdctl run --name box busybox true; nerdctl rm box; await 1 grep -c containers/delete $W/events; kill $!
				grep -E '^/(tasks|containers)/(create|start|exit|delete)' $W/events >$W/seen; [ $RUNTIME = sandbox ] || sed -i '\,^/tasks/\(exit\|delete\)$,d; s,^/tasks/start$,&\n/tasks/exit\n/tasks/delete,' $W/seen; cat $W/seen`,
			want: "box\n/containers/create\n/tasks/create\n/tasks/start\n/tasks/exit\n/tasks/delete\n/containers/delete\n",
		},
		{
			name: "container healthcheck",
			script: `nerdctl run -d --name box --health-cmd 'test ! -e /sick' --health-interval 1h --health-retries 1 busybox sleep 1000 >/dev/null; check() { nerdctl container healthcheck box 2>/dev/null || :; nerdctl inspect -f '{{.State.Health.Status}}' box; }
				check; nerdctl exec box touch /sick; check; nerdctl kill box`,
			want: "healthy\nunhealthy\n",
		},
	}
}

func nerdctlLimits() []clientCase {
	const read = `read() { nerdctl exec box sh -c "cat /sys/fs/cgroup/$1 /sys/fs/cgroup/$2 2>/dev/null || :"; }; `
	return []clientCase{
		{
			name: "-m, --cpus, --pids-limit, update",
			script: read + `nerdctl run -d -m 64m --memory-swap 64m --cpus 0.5 --pids-limit 50 --name box busybox sleep 1000 >/dev/null; all() { read memory/memory.limit_in_bytes memory.max; read pids/pids.max pids.max; read cpu/cpu.cfs_quota_us cpu.max | cut -d' ' -f1; }
				all; nerdctl update -m 128m --memory-swap 128m --cpu-period 100000 --cpu-quota 25000 --pids-limit 20 box; all`,
			want: "67108864\n50\n50000\n134217728\n20\n25000\n",
		},
		{name: "OOM", script: `nerdctl run -m 32m --memory-swap 32m --name box busybox tail /dev/zero || echo $?`, want: "137\n"},
		{
			name:   "pause, unpause, stop and rm -f of a paused one",
			script: nerdctlBox + `nerdctl pause box; nerdctl inspect -f '{{.State.Status}}' box; nerdctl unpause box; nerdctl inspect -f '{{.State.Status}}' box; nerdctl pause box; nerdctl stop -t 1 box; nerdctl wait box; nerdctl start box; nerdctl pause box; nerdctl rm -f box`,
			want:   "box\npaused\nbox\nrunning\nbox\nbox\n137\nbox\nbox\nbox\n",
		},
		{
			name: "stats --no-stream, top",
			script: `nerdctl run -d -m 64m --name box busybox sh -c 'sleep 1000 & sleep 1000' >/dev/null; await "box 2" nerdctl stats --no-stream --format '{{.Name}} {{.PIDs}}' box
				nerdctl stats --no-stream --format '{{.MemUsage}} {{.NetIO}} {{.CPUPerc}}' box | grep -cE '[1-9].* / 64MiB .* / .*%'; processes box; nerdctl top box | wc -l`,
			want: "1\nsleep 1000\nsleep 1000\n3\n",
		},
		{
			name: "--ulimit, --oom-score-adj, --shm-size, --sysctl, --umask",
			script: `nerdctl run --rm --ulimit nofile=100:200 --oom-score-adj 500 --shm-size 8m --sysctl net.ipv4.ip_default_ttl=99 --umask 077 busybox sh -c 'ulimit -Sn; ulimit -Hn; umask
				cat /proc/self/oom_score_adj /proc/sys/net/ipv4/ip_default_ttl; df -k /dev/shm | tail -1 | tr -s " " | cut -d" " -f2'`,
			want: "100\n200\n0077\n500\n99\n8192\n",
		},
		{name: "a sysctl that is refused", script: `nerdctl run --name box --sysctl net.ipv4.nothing=1 busybox true || echo $?`, want: "1\n", mask: words, reason: wordsReason},
		{
			name:   "--cgroup-parent, --cgroupns",
			script: `nerdctl run --rm --cgroup-parent /shim-test-nerdctl/p --cgroupns host busybox sh -c 'grep -c ":/shim-test-nerdctl/p/" /proc/self/cgroup >/n; [ $(cat /n) -gt 0 ] && echo parent'; nerdctl run --rm --cgroupns private busybox sh -c 'cut -d: -f3 /proc/self/cgroup | sort -u'; find /sys/fs/cgroup -depth -path '*/shim-test-nerdctl/p' -exec rmdir {} +`,
			want:   "parent\n/\n",
		},
	}
}

func nerdctlSecurity() []clientCase {
	const ns = `ns() { readlink /proc/self/ns/$1; }; in_a() { nerdctl run --rm "$@"; }; `
	return []clientCase{
		{
			name: "--security-opt: seccomp, no-new-privileges",
			script: `nerdctl run --rm busybox unshare -U true 2>/dev/null || echo $?; nerdctl run --rm --security-opt seccomp=unconfined busybox unshare -U echo unshared
				echo '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}' >$W/profile
				nerdctl run -d --security-opt seccomp=$W/profile --security-opt no-new-privileges --name box busybox sleep 1000 >/dev/null; nerdctl exec box mkdir /d 2>/dev/null || echo $?
				nerdctl exec box grep -h NoNewPrivs /proc/1/status /proc/self/status`,
			want: "1\nunshared\n1\nNoNewPrivs:\t1\nNoNewPrivs:\t1\n",
		},
		{
			name: "-u, --group-add",
			script: `nerdctl run --rm -u tester busybox id; nerdctl run --rm -u 1234 busybox id; nerdctl run --rm -u 1234:99 --group-add extra --group-add 98 busybox id
				nerdctl run --rm -u nobodyy busybox id 2>/dev/null || echo $?`,
			want: "uid=1000(tester) gid=1000(tester) groups=1000(tester),4444(extra)\nuid=1234 gid=0(root) groups=0(root)\n" +
				"uid=1234 gid=99 groups=98,99,4444(extra)\n1\n",
		},
		{
			name: "--privileged, --security-opt privileged-without-host-devices, systempaths",
			script: `nerdctl run -d --privileged --name box busybox sleep 1000 >/dev/null; nerdctl exec box sh -c 'mount -t tmpfs none /tmp && echo mounted; grep -E "^Seccomp:|NoNewPrivs" /proc/self/status; touch /proc/sys/vm/swappiness && echo open; test -e /dev/kmsg && echo devices'
				nerdctl run --rm --privileged --security-opt privileged-without-host-devices busybox test -e /dev/kmsg || echo $?
				nerdctl run --rm --security-opt systempaths=unconfined busybox touch /proc/sys/vm/swappiness && echo open; nerdctl run --rm busybox touch /proc/sys/vm/swappiness 2>/dev/null || echo $?`,
			want: "mounted\nNoNewPrivs:\t0\nSeccomp:\t0\nopen\ndevices\n1\nopen\n1\n",
		},
		{
			name: "--device",
			script: `nerdctl run --rm --device /dev/zero:/dev/mine:r busybox sh -c 'head -c 3 /dev/mine | wc -c; echo x >/dev/mine' 2>/dev/null || echo $?
				nerdctl run --rm --device /dev/full busybox sh -c 'echo x >/dev/full' 2>&1 | grep -o 'No space left'; nerdctl run --rm --device /dev/nothing busybox true 2>/dev/null || echo $?`,
			want: "3\nNo space left\n1\n",
		},
		{name: "what is in /dev", script: `nerdctl run --rm busybox ls /dev | grep -vx core`, want: "fd\nfull\nmqueue\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"},
		{
			name: "--pid, --uts, --network: host",
			script: ns + `for kind in pid uts; do [ "$(in_a --$kind host busybox readlink /proc/self/ns/$kind)" = "$(ns $kind)" ] && echo $kind; [ "$(in_a busybox readlink /proc/self/ns/$kind)" != "$(ns $kind)" ] && echo own; done
				[ "$(in_a --network host busybox readlink /proc/self/ns/net)" = "$(ns net)" ] && echo net`,
			want: "pid\nown\nuts\nown\nnet\n",
		},
		{
			name:   "--pid host: the end of init, kill and stop",
			script: `nerdctl run -d --pid host --name box busybox sh -c 'sleep 98765 & sleep 1000' >/dev/null; nerdctl exec box sleep 0; processes box | grep -c sleep; nerdctl kill box; nerdctl wait box; await '' pgrep -x -f 'sleep 98765'`,
			want:   "2\n137\n",
		},
		{
			name: "--pid, --ipc, --network: container",
			script: `nerdctl run -d --ipc shareable --name one busybox sh -c 'echo x >/dev/shm/f; exec sleep 1234' >/dev/null; await x nerdctl exec one cat /dev/shm/f
				nerdctl run -d --pid container:one --ipc container:one --network container:one --name two busybox sleep 1000 >/dev/null
				for kind in pid ipc net; do [ "$(nerdctl exec one readlink /proc/self/ns/$kind)" = "$(nerdctl exec two readlink /proc/self/ns/$kind)" ] && echo $kind; done
				nerdctl exec two cat /dev/shm/f; nerdctl kill two; nerdctl exec one echo lives; nerdctl kill one; nerdctl wait one two`,
			want: "pid\nipc\nnet\nx\nlives\n137\n137\n",
		},
		{
			name: "--network none, bridge, one of one's own",
			script: `nerdctl run --rm --network none busybox sh -c 'ip -o link | wc -l'; nerdctl run -d --name one busybox sleep 1000 >/dev/null
				nerdctl run --rm busybox ping -c 1 -W 5 -q $(nerdctl inspect -f '{{.NetworkSettings.IPAddress}}' one) | grep -o '1 packets received'
				nerdctl network create own >/dev/null; nerdctl run -d --network own --name two busybox sleep 1000 >/dev/null; nerdctl run --rm --network own busybox ping -c 1 -W 5 -q two | grep -o '1 packets received'; nerdctl rm -f two; nerdctl network rm own`,
			want: "1\n1 packets received\n1 packets received\ntwo\nown\n",
		},
		{
			name: "-p, port",
			script: `nerdctl run -d -p 127.0.0.1:8099:80 --name box busybox sh -c 'while :; do echo hello | nc -l -p 80; done' >/dev/null; nerdctl port box; nerdctl port box 80/tcp
				ip=$(nerdctl inspect -f '{{.NetworkSettings.IPAddress}}' box); await hello sh -c "busybox nc $ip 80 </dev/null"; await hello sh -c "busybox nc 127.0.0.1 8099 </dev/null"
				nerdctl restart -t 0 box; await hello sh -c "busybox nc 127.0.0.1 8099 </dev/null"`,
			want: "80/tcp -> 127.0.0.1:8099\n127.0.0.1:8099\nbox\n",
		},
		{
			name:   "--hostname, --add-host, --dns",
			script: `nerdctl run --rm -h name --add-host other:192.0.2.1 --dns 192.0.2.2 busybox sh -c 'hostname; grep -c other /etc/hosts; grep ^nameserver /etc/resolv.conf'`,
			want:   "name\n1\nnameserver 192.0.2.2\n",
		},
	}
}

func nerdctlFiles() []clientCase {
	return []clientCase{
		{
			name: "--mount: tmpfs, propagation; :ro of what is mounted below",
			script: `mkdir -p $W/d/m; nerdctl run -d --name box --mount type=bind,source=$W/d,target=/d,bind-propagation=rslave --mount type=tmpfs,target=/t,tmpfs-size=1m busybox sleep 1000 >/dev/null
				mount -t tmpfs none $W/d/m; touch $W/d/m/f; nerdctl exec box ls /d/m; nerdctl exec box df -k /t | tail -1 | tr -s ' ' | cut -d' ' -f2
				nerdctl run --rm -v $W/d:/d:ro busybox touch /d/m/f 2>/dev/null || echo $?; nerdctl run --rm -v $W/d:/d:rro busybox touch /d/m/f 2>/dev/null || echo $?; umount $W/d/m`,
			want: "f\n1024\n1\n",
		},
		{
			name: "cp both ways, running and not",
			script: `echo hello >$W/f; nerdctl run -d --name box busybox sleep 1000 >/dev/null; nerdctl cp $W/f box:/a; nerdctl exec box cat /a; nerdctl exec box sh -c 'echo bye >/c'; nerdctl cp box:/c $W/c; cat $W/c
				nerdctl kill box; nerdctl wait box; nerdctl cp box:/c $W/d; nerdctl cp $W/f box:/e; cat $W/d; nerdctl start box; nerdctl exec box cat /e`,
			want: "hello\nbye\n137\nbye\nbox\nhello\n",
		},
		{
			name: "commit, running and not, save, load, import",
			script: nerdctlBox + `nerdctl exec box sh -c 'echo x >/f'; nerdctl commit -c 'CMD ["cat", "/f"]' box made >/dev/null; nerdctl run --rm made; nerdctl kill box; nerdctl commit --pause=false box again >/dev/null; nerdctl run --rm again cat /f
				nerdctl save -o $W/made made; nerdctl rmi -f made again >/dev/null; nerdctl load -q -i $W/made >/dev/null; nerdctl run --rm made; nerdctl rmi -f made >/dev/null
				nerdctl export box | nerdctl import - flat >/dev/null 2>&1; nerdctl run --rm flat cat /f; nerdctl rmi -f flat >/dev/null`,
			want: "x\nx\nx\nx\n",
		},
		{name: "a file of the host on a directory: refused", script: `nerdctl run --name box -v /etc/passwd:/tmp busybox true || echo $?`, want: "1\n", mask: words, reason: wordsReason},
	}
}

func nerdctlCompose() []clientCase {
	const up = `cat >$W/compose.yaml <<END
services:
  web: {image: busybox, runtime: $TYPE, command: [sh, -c, "while :; do echo hello | nc -l -p 80; done"], environment: {A: "1"}, volumes: [data:/data]}
  job: {image: busybox, runtime: $TYPE, command: [sh, -c, "echo \$\$B; echo err >&2; exit 3"], environment: {B: two}, depends_on: [web]}
volumes: {data: {}}
END
compose up -d >/dev/null 2>&1; `
	const down = `; compose down -v >/dev/null 2>&1; nerdctl ps -aq; nerdctl network ls --format '{{.Name}}' | grep project || echo gone`
	return []clientCase{
		{name: "compose up, ps, logs, down", script: up + `await two sh -c 'compose logs --no-log-prefix job 2>/dev/null'; compose ps --services; nerdctl wait project-job-1` + down, want: "web\n3\ngone\n"},
		{
			name:   "compose exec, cp, names of services",
			script: up + `compose exec -T web sh -c 'echo $A; echo x >/data/f; exit 4' 2>$W/err || grep -o 'code [0-9]*' $W/err; compose exec -T web ping -c 1 -q web | grep -o '1 packets received'; compose cp web:/data/f $W/f 2>/dev/null; cat $W/f` + down,
			want:   "1\ncode 4\n1 packets received\nx\ngone\n",
		},
		{
			name: "compose pause, kill, restart, stop, start, rm",
			script: up + `compose pause web >/dev/null 2>&1; nerdctl inspect -f '{{.State.Status}}' project-web-1; compose unpause web >/dev/null 2>&1; compose restart -t 0 web >/dev/null 2>&1; compose stop -t 0 web >/dev/null 2>&1; compose start web >/dev/null 2>&1; compose exec -T web echo up
				compose kill web >/dev/null 2>&1; nerdctl wait project-web-1; compose rm -f >/dev/null 2>&1` + down,
			want: "paused\nup\n137\ngone\n",
		},
	}
}

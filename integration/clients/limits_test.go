// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import "testing"

// read prints the first of a cgroup's files that there is, as the container sees it: v1's name, then v2's.
const read = `read() { docker exec box sh -c "cat /sys/fs/cgroup/$1 /sys/fs/cgroup/$2 2>/dev/null || :"; }; `

func TestDocker_Limits(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name: "--memory, --cpus, --pids-limit, --cpu-shares",
			script: read + `docker run -d --memory 64m --memory-swap 64m --cpus 0.5 --pids-limit 50 --cpu-shares 512 --name box busybox sleep 1000 >/dev/null
				read memory/memory.limit_in_bytes memory.max; read pids/pids.max pids.max; read cpu/cpu.cfs_quota_us cpu.max | cut -d' ' -f1`,
			want: "67108864\n50\n50000\n",
		},
		{
			name: "update",
			script: read + `docker run -d --memory 64m --memory-swap 64m --name box busybox sleep 1000 >/dev/null
				docker update --memory 128m --memory-swap 128m --cpus 0.25 --pids-limit 20 --restart on-failure:1 box | grep -v "does not support swap"
				read memory/memory.limit_in_bytes memory.max; read pids/pids.max pids.max; read cpu/cpu.cfs_quota_us cpu.max | cut -d' ' -f1`,
			want: "box\n134217728\n20\n25000\n",
		},
		{
			name: "OOM",
			script: `docker run --memory 32m --memory-swap 32m --name box busybox tail /dev/zero || echo $?
				docker inspect -f '{{.State.OOMKilled}}' box`,
			want: "137\ntrue\n",
		},
		{
			name: "--pids-limit holds",
			script: `docker run --pids-limit 5 --name box busybox sh -c 'for n in 1 2 3 4 5 6 7; do sleep 1 & done' 2>$W/err || echo $?
				grep -o "can't fork.*" $W/err | head -1`,
			want: "2\ncan't fork: Resource temporarily unavailable\n",
		},
		{
			name: "pause, unpause",
			script: `docker run -d --name box busybox sleep 1000 >/dev/null; docker pause box; docker inspect -f '{{.State.Status}}' box
				docker unpause box; docker inspect -f '{{.State.Status}}' box; docker pause box; docker kill box; docker wait box`,
			want: "box\npaused\nbox\nrunning\nbox\nbox\n137\n",
		},
		{
			name: "stop and rm -f of a paused one",
			script: `docker run -d --name box busybox sleep 1000 >/dev/null; docker pause box; docker stop -t 1 box; docker wait box
				docker start box; docker pause box; docker rm -f box`,
			want: "box\nbox\n137\nbox\nbox\nbox\n",
		},
		{
			name: "stats --no-stream",
			script: `docker run -d --name box busybox sh -c 'sleep 1000 & sleep 1000' >/dev/null
				await "box 2" docker stats --no-stream --format '{{.Name}} {{.PIDs}}'
				docker stats --no-stream --format '{{.MemUsage}}' box | grep -q '^0B' || echo memory`,
			want: "memory\n",
		},
		{name: "top", script: `docker run -d --name box busybox sleep 1000 >/dev/null; processes box; docker top box | wc -l`, want: "sleep 1000\n2\n"},
		{
			name: "--ulimit, --oom-score-adj, --shm-size, --sysctl",
			script: `docker run --rm --ulimit nofile=100:200 --oom-score-adj 500 --shm-size 8m --sysctl net.ipv4.ip_default_ttl=99 --sysctl kernel.msgmax=9000 \
				busybox sh -c 'ulimit -Sn; ulimit -Hn; cat /proc/self/oom_score_adj /proc/sys/net/ipv4/ip_default_ttl /proc/sys/kernel/msgmax
				df -k /dev/shm | tail -1 | tr -s " " | cut -d" " -f2'`,
			want: "100\n200\n500\n99\n9000\n8192\n",
		},
		{name: "a sysctl that is refused", script: `docker run --name box --sysctl net.ipv4.nothing=1 busybox true || echo $?`, want: "127\n", mask: words, reason: wordsReason},
	})
}

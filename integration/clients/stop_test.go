// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"regexp"
	"testing"
)

func TestDocker_Stop(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name: "kill",
			script: `docker run -d --name box busybox sleep 1000 >/dev/null; docker kill box; docker wait box
				docker kill box 2>/dev/null || echo $?`,
			want: "box\n137\n1\n",
		},
		{
			name: "kill -s",
			script: `docker run -d --name box busybox sh -c 'trap "echo usr1" USR1; trap "exit 5" TERM; echo ready; while :; do sleep 0.1; done' >/dev/null
				await ready docker logs box; docker kill -s USR1 box; await "ready
usr1" docker logs box; docker kill -s TERM box; docker wait box`,
			want: "box\nbox\n5\n",
		},
		{
			name: "stop with grace",
			script: `docker run -d --name box busybox sh -c 'trap "echo bye; exit 6" TERM; echo ready; while :; do sleep 0.1; done' >/dev/null
				await ready docker logs box; docker stop box; docker wait box; docker logs box`,
			want: "box\n6\nready\nbye\n",
		},
		{
			name: "stop of one that does not listen",
			script: `docker run -d --name box busybox sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done' >/dev/null
				await ready docker logs box; docker stop -t 1 box; docker wait box`,
			want: "box\n137\n",
		},
		{
			name: "--stop-signal, --stop-timeout",
			script: `docker run -d --stop-signal QUIT --stop-timeout 30 --name box busybox sh -c 'trap "exit 8" QUIT; echo ready; while :; do sleep 0.1; done' >/dev/null
				await ready docker logs box; docker stop box; docker wait box`,
			want: "box\n8\n",
		},
		{
			name: "rm, rm -f",
			script: `docker run -d --name box busybox sh -c 'trap "" TERM; while :; do sleep 0.1; done' >/dev/null
				docker rm box 2>/dev/null || echo $?; docker rm -f box; docker ps -aq`,
			want: "1\nbox\n",
		},
		{
			name: "the end of init ends all",
			script: `docker run -d --name box busybox sh -c "sleep 1000 & sleep $SLOWNESS" >/dev/null; docker exec box sleep 1000 || echo $?
				docker wait box`,
			want: "137\n0\n",
		},
		{
			name: "--restart on-failure:2",
			script: `docker run -d --name box --restart on-failure:2 busybox sh -c 'echo x; exit 3' >/dev/null
				await "exited 2 3" docker inspect -f '{{.State.Status}} {{.RestartCount}} {{.State.ExitCode}}' box; docker logs box`,
			want: "x\nx\nx\n",
		},
		{
			name: "--restart always",
			script: `docker run -d --name box --restart always busybox true >/dev/null
				await true docker inspect -f '{{gt .RestartCount 1}}' box; docker stop box`,
			want: "box\n",
			mask: regexp.MustCompile(`"RestartCount": \d+`), reason: "restarts go on until the stop",
		},
		{
			name: "--restart unless-stopped",
			script: `docker run -d --name box --restart unless-stopped busybox sh -c 'sleep 0.2; exit 1' >/dev/null
				await 1 docker inspect -f '{{.RestartCount}}' box; docker kill box >/dev/null || :
				await exited docker inspect -f '{{.State.Status}}' box; docker inspect -f '{{.HostConfig.RestartPolicy.Name}}' box`,
			want: "unless-stopped\n",
			mask: regexp.MustCompile(`"(RestartCount|ExitCode)": \d+`), reason: "the kill comes at any time",
		},
		{
			name: "--init",
			script: `docker run -d --init --name box busybox sh -c 'sleep 0.1 & exec sleep 1000' >/dev/null
				docker exec box cat /proc/1/comm; await "/sbin/docker-init -- sh -c sleep 0.1 & exec sleep 1000
sleep 1000" processes box; docker stop -t 20 box; docker wait box`,
			want: "docker-init\nbox\n143\n",
		},
		{
			name: "events, in order",
			script: `docker run --name box busybox true; docker start box >/dev/null; id=$(docker inspect -f '{{.Id}}' box); docker wait box; docker rm box
				docker events --since 0 --until $(($(date +%s) + 1)) --filter container=$id --format '{{.Action}}'`,
			want: "0\nbox\ncreate\nattach\nstart\ndie\nstart\ndie\ndestroy\n",
		},
		{
			name: "events of exec, kill, pause",
			script: `docker run -d --name box busybox sleep 1000 >$W/id
				docker exec box true; docker exec box false || echo $?; docker pause box; docker unpause box; docker kill box; docker wait box
				docker events --since 0 --until $(($(date +%s) + 1)) --filter container=$(cat $W/id) --format '{{.Action}}' | sed 's/: .*//'`,
			want: "1\nbox\nbox\nbox\n137\ncreate\nstart\nexec_create\nexec_start\nexec_die\nexec_create\nexec_start\nexec_die\n" +
				"pause\nunpause\nkill\ndie\n",
		},
		{
			name: "events of an OOM kill", // which comes before the exit that it caused, with the runc shim sometimes after
			script: `docker run -d --memory 32m --memory-swap 32m --name box busybox sleep 1000 >$W/id; docker exec box tail /dev/zero || echo $?
				docker events --since 0 --until $(($(date +%s) + 1)) --filter container=$(cat $W/id) --format '{{.Action}}' >$W/events
				grep -E 'oom|exec_die' $W/events | if [ $RUNTIME = runc ]; then sort -r; else cat; fi`,
			want: "137\noom\nexec_die\n",
		},
	})
}

func TestDocker_Health(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name: "--health-cmd: starting, healthy, unhealthy",
			script: `docker run -d --name box --health-cmd 'test ! -e /sick' --health-interval 200ms --health-retries 2 busybox sleep 1000 >/dev/null
				await healthy docker inspect -f '{{.State.Health.Status}}' box; docker exec box touch /sick
				await unhealthy docker inspect -f '{{.State.Health.Status}}' box; docker exec box rm /sick
				await healthy docker inspect -f '{{.State.Health.Status}}' box; docker kill box`,
			want: "box\n",
			mask: regexp.MustCompile(`"FailingStreak": \d+`), reason: "a check may run when it is killed",
		},
		{
			name: "--health-timeout",
			script: `docker run -d --name box --health-cmd 'sleep 1000' --health-timeout 300ms --health-interval 200ms --health-retries 1 busybox sleep 1000 >/dev/null
				await unhealthy docker inspect -f '{{.State.Health.Status}}' box; docker inspect -f '{{(index .State.Health.Log 0).ExitCode}}' box; docker kill box`,
			want: "-1\nbox\n",
			mask: regexp.MustCompile(`"FailingStreak": \d+`), reason: "checks go on",
		},
	})
}

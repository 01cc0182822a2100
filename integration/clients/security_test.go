// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import "testing"

func TestDocker_Security(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name:   "capabilities of a user, and of an exec",
			script: `docker run -d -u tester --name box busybox sleep 1000 >/dev/null; docker exec box grep -E 'Cap(Prm|Eff|Bnd)' /proc/1/status; docker exec -u 0 box grep CapEff /proc/self/status`,
			want:   "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t00000000a80425fb\nCapEff:\t00000000a80425fb\n",
		},
		{
			name: "seccomp: the default refuses, unconfined does not",
			script: `docker run --rm busybox unshare -U true || echo $?; docker run --rm --security-opt seccomp=unconfined busybox unshare -U echo unshared
				docker run --rm --security-opt seccomp=unconfined busybox grep ^Seccomp: /proc/self/status`,
			want: "1\nunshared\nSeccomp:\t0\n",
		},
		{
			name: "seccomp: a profile of one's own, also for execs",
			script: `echo '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}' >$W/profile
				docker run -d --security-opt seccomp=$W/profile --name box busybox sleep 1000 >/dev/null; docker exec box mkdir /d || echo $?`,
			want: "1\n",
		},
		{
			name: "no-new-privileges",
			script: `docker run -d --security-opt no-new-privileges --name box busybox sleep 1000 >/dev/null
				docker exec box grep -h NoNewPrivs /proc/1/status /proc/self/status`,
			want: "NoNewPrivs:\t1\nNoNewPrivs:\t1\n",
		},
		{
			name: "-u, --group-add",
			script: `docker run --rm -u tester busybox id; docker run --rm -u 1234 busybox id; docker run --rm -u 1234:99 --group-add extra --group-add 98 busybox id
				docker run --name box -u nobodyy busybox id 2>/dev/null || echo $?`,
			want: "uid=1000(tester) gid=1000(tester) groups=1000(tester),4444(extra)\nuid=1234 gid=0(root) groups=0(root)\n" +
				"uid=1234 gid=99 groups=98,99,4444(extra)\n125\n",
		},
		{
			name: "what /proc and /sys hide",
			script: `docker run --rm busybox sh -c 'ls /proc/acpi /sys/firmware | wc -w; echo 1 >/proc/sys/vm/swappiness' || echo $?
				docker run --rm --security-opt systempaths=unconfined busybox sh -c 'test -s /proc/kcore; ls /sys/firmware >/dev/null; touch /proc/sys/vm/swappiness && echo open'`,
			want: "2\n1\nopen\n",
		},
		{
			name: "--privileged",
			script: `docker run -d --privileged --name box busybox sleep 1000 >/dev/null
				docker exec box sh -c 'mount -t tmpfs none /tmp && echo mounted; mknod /tmp/m c 1 5 && head -c 1 /tmp/m | wc -c; grep -E "^Seccomp:|NoNewPrivs" /proc/self/status; touch /proc/sys/vm/swappiness && echo open'
				[ "$(docker exec box grep CapEff /proc/self/status)" = "$(grep CapEff /proc/self/status)" ] && echo all; docker exec box test -e /dev/kmsg && echo devices`,
			want: "mounted\n1\nNoNewPrivs:\t0\nSeccomp:\t0\nopen\nall\ndevices\n",
		},
		{
			name: "--device, --device-cgroup-rule",
			script: `docker run --rm --device /dev/zero:/dev/mine:r busybox sh -c 'head -c 3 /dev/mine | wc -c; echo x >/dev/mine' 2>$W/err || echo $?
				docker run --rm busybox sh -c 'mknod /tmp/d c 10 229; head -c 1 /tmp/d' 2>&1 || echo $?
				docker run --rm --device-cgroup-rule 'c 10:* rw' busybox sh -c 'mknod /tmp/d c 10 183 && : </tmp/d' 2>&1 | grep -o 'Operation not permitted\|No such device' || echo open
				docker run --name box --device /dev/nothing busybox true 2>$W/err || echo $?`,
			want: "3\nhead: /tmp/d: Operation not permitted\n1\nopen\n127\n",
		},
		{
			name:   "what is in /dev",
			script: `docker run --rm busybox ls /dev | grep -vx core; docker run --rm -t busybox test -c /dev/console && echo console`,
			want:   "fd\nfull\nmqueue\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\nconsole\n",
		},
	})
}

func TestDocker_Namespaces(t *testing.T) {
	const ns = `ns() { readlink /proc/self/ns/$1; }; in_a() { docker run --rm "$@"; }; `
	compare(t, shared, []clientCase{
		{
			name: "each has its own",
			script: ns + `for kind in pid ipc uts net mnt; do [ "$(in_a busybox readlink /proc/self/ns/$kind)" != "$(ns $kind)" ] && echo $kind; done
				[ "$(in_a busybox readlink /proc/self/ns/user)" = "$(ns user)" ] && echo "not user"`,
			want: "pid\nipc\nuts\nnet\nmnt\nnot user\n",
		},
		{
			name: "exec joins all",
			script: `docker run -d --name box busybox sleep 1000 >/dev/null
				for kind in pid ipc uts net mnt cgroup user time; do [ "$(docker exec box readlink /proc/1/ns/$kind)" = "$(docker exec box readlink /proc/self/ns/$kind)" ] && echo $kind; done`,
			want: "pid\nipc\nuts\nnet\nmnt\ncgroup\nuser\ntime\n",
		},
		{
			name: "--pid, --ipc, --uts, --network, --cgroupns: host",
			script: ns + `for kind in pid ipc uts; do [ "$(in_a --$kind host busybox readlink /proc/self/ns/$kind)" = "$(ns $kind)" ] && echo $kind; done
				[ "$(in_a --network host busybox readlink /proc/self/ns/net)" = "$(ns net)" ] && echo net
				[ "$(in_a --cgroupns host busybox readlink /proc/self/ns/cgroup)" = "$(ns cgroup)" ] && echo cgroup`,
			want: "pid\nipc\nuts\nnet\ncgroup\n",
		},
		{
			name: "--pid=host: the end of init, kill and stop",
			script: `docker run -d --pid host --name box busybox sh -c 'sleep 98765 & sleep 1000' >/dev/null; docker exec box sleep 0
				processes box | grep -c sleep; docker kill box; docker wait box; await '' pgrep -x -f 'sleep 98765'`,
			want: "2\nbox\n137\n",
		},
		{
			name: "--pid, --ipc, --network: container",
			script: `docker run -d --ipc shareable --name one busybox sh -c 'echo x >/dev/shm/f; exec sleep 1234' >/dev/null; await x docker exec one cat /dev/shm/f
				docker run -d --pid container:one --ipc container:one --network container:one --name two busybox sleep 1000 >/dev/null
				for kind in pid ipc net; do [ "$(docker exec one readlink /proc/self/ns/$kind)" = "$(docker exec two readlink /proc/self/ns/$kind)" ] && echo $kind; done
				docker exec two cat /dev/shm/f /proc/1/cmdline | tr '\0' ' '; docker kill two; docker exec one echo lives; docker kill one; docker wait one two`,
			want: "pid\nipc\nnet\nx\nsleep 1234 two\nlives\none\n137\n137\n",
		},
		{
			name: "the end of one whose PID namespace another shares",
			script: `docker run -d --name one busybox sleep 1000 >/dev/null; docker run -d --pid container:one --name two busybox sleep 1000 >/dev/null
				docker kill one; docker wait one two; docker inspect -f '{{.State.Status}}' two`,
			want: "one\n137\n137\nexited\n",
		},
		{
			name: "--network none, bridge",
			script: `docker run --rm --network none busybox sh -c 'ip -o link | wc -l'; docker run -d --name one busybox sleep 1000 >/dev/null
				docker run --rm busybox ping -c 1 -W 5 -q $(docker inspect -f '{{.NetworkSettings.IPAddress}}' one) | grep -o '1 packets received'`,
			want: "1\n1 packets received\n",
		},
		{
			name:   "--ipc private, none",
			script: `docker run --rm --ipc private busybox sh -c 'grep -c " /dev/shm " /proc/mounts'; docker run --rm --ipc none busybox sh -c 'grep -c " /dev/shm " /proc/mounts' || echo $?`,
			want:   "1\n0\n1\n",
		},
		{
			name:   "hostname, resolv.conf, hosts",
			script: `docker run --rm -h name --domainname dom --add-host other:192.0.2.1 --dns 192.0.2.2 busybox sh -c 'hostname; grep -c other /etc/hosts; grep ^nameserver /etc/resolv.conf; cat /proc/sys/kernel/domainname'`,
			want:   "name\n1\nnameserver 192.0.2.2\ndom\n",
		},
	})
}

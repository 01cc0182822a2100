// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import "testing"

func TestBuildKit(t *testing.T) {
	compare(t, newBuildkit(t), []clientCase{
		{
			name: "RUN, by a shell and without one",
			script: `build <<'END'
RUN mkdir /out && echo hello >/out/f
RUN ["/bin/sh", "-c", "echo again >>/out/f"]
END
cat $W/out/f`,
			want: "hello\nagain\n",
		},
		{
			name: "its output, stdout and stderr",
			script: `build <<'END'
RUN mkdir /out && echo to stdout
RUN echo to stderr >&2
END
cat $W/said`,
			want: "to stdout\nto stderr\n",
		},
		{
			name: "100 kB of output", // BuildKit itself clips what is much more
			script: `build <<'END'
RUN mkdir /out && yes 0123456789abcde | head -n 6250
END
grep -c 0123456789abcde $W/said`,
			want: "6250\n",
		},
		{
			name: "a step that fails",
			script: `build <<'END' || echo failed
RUN mkdir /out && exit 7
END
ls $W | grep -c out || :`,
			want: "exit code: 7\nfailed\n0\n",
		},
		{name: "a step that a signal ends", script: `printf 'RUN exec sleep 98762\n' | build & await 1 pgrep -c -x -f 'sleep 98762'; pkill -KILL -x -f 'sleep 98762'; wait $! || echo failed`, want: "exit code: 137\nfailed\n"},
		{
			name: "a program that is absent",
			script: `build <<'END' || echo failed
RUN ["nothing"]
END`,
			want: "failed\n",
		},
		{
			name: "ENV, WORKDIR, USER, SHELL",
			script: `build <<'END'
RUN mkdir /out && chmod 777 /out
ENV A=1 B="two words"
WORKDIR /work/dir
USER tester
SHELL ["/bin/sh", "-ec"]
RUN echo "$A $B $PWD" >/out/f; id >>/out/f
END
cat $W/out/f`,
			want: "1 two words /work/dir\nuid=1000(tester) gid=1000(tester) groups=1000(tester),4444(extra)\n",
		},
		{
			name: "capabilities, seccomp, what is read-only",
			script: `build <<'END'
RUN mkdir /out && grep -E 'Cap(Eff|Bnd)|NoNewPrivs|^Seccomp:' /proc/self/status >/out/f
RUN { echo 1 >/proc/sys/vm/swappiness; } 2>/dev/null || echo refused >>/out/f
END
cat $W/out/f`,
			want: "CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\nSeccomp:\t2\nrefused\n",
		},
		{
			name: "--security=insecure",
			script: `build --allow security.insecure <<'END'
RUN --security=insecure mkdir /out && mount -t tmpfs none /tmp && grep ^Seccomp: /proc/self/status >/out/f
END
cat $W/out/f`,
			want: "Seccomp:\t0\n",
		},
		{
			name: "--mount: tmpfs, bind, cache, secret",
			script: `echo key >$W/secret; build --secret id=s,src=$W/secret <<'END'
RUN --mount=type=tmpfs,target=/t,size=1048576 mkdir /out && df -k /t | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2 >>/out/f
RUN --mount=type=bind,target=/ctx ls /ctx >>/out/f && ! touch /ctx/x
RUN --mount=type=cache,target=/c echo kept >/c/f
RUN --mount=type=cache,target=/c cat /c/f >>/out/f
RUN --mount=type=secret,id=s cat /run/secrets/s >>/out/f
END
cat $W/out/f`,
			want: "1024\nrootfs.tar\nkept\nkey\n",
		},
		{
			name: "--network=none, host",
			script: `build --allow network.host <<'END'
RUN --network=none mkdir /out && ip -o link | wc -l >>/out/f
RUN --network=host readlink /proc/self/ns/net >>/out/f
END
head -n 1 $W/out/f; [ "$(tail -n 1 $W/out/f)" = "$(readlink /proc/self/ns/net)" ] && echo "the host's"`,
			want: "1\nthe host's\n",
		},
		{
			name: "namespaces of a step",
			script: `build <<'END'
RUN mkdir /out && for kind in pid ipc uts mnt user; do readlink /proc/self/ns/$kind; done >/out/f
END
for kind in pid ipc uts mnt user; do grep -qF "$(readlink /proc/self/ns/$kind)" $W/out/f && echo "$kind is the host's" || echo $kind; done`,
			want: "pid\nipc\nuts\nmnt\nuser is the host's\n",
		},
		{
			name: "ulimit, shm-size, add-hosts",
			script: `build --opt ulimit=nofile=100:200 --opt shm-size=8388608 --opt add-hosts=other=192.0.2.1 <<'END'
RUN mkdir /out && { ulimit -Sn; ulimit -Hn; df -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2; grep -c other /etc/hosts; } >/out/f
END
cat $W/out/f`,
			want: "100\n200\n8192\n1\n",
		},
		{
			name: "what a step leaves running ends with it",
			script: `build <<'END'
RUN mkdir /out && (sleep 98764 >/dev/null 2>&1 &) && echo hello >/out/f
END
cat $W/out/f; await '' pgrep -x -f 'sleep 98764'`,
			want: "hello\n",
		},
		{
			name: "ten stages at the same time",
			script: `{ echo 'RUN mkdir /out'
				for n in 0 1 2 3 4 5 6 7 8 9; do printf 'FROM base AS s%s\nRUN sleep 1; echo %s >/out/f%s\n' $n $n $n; done
				echo 'FROM base AS all'; for n in 0 1 2 3 4 5 6 7 8 9; do echo "COPY --from=s$n /out /out"; done
				} | LAST=all build; cat $W/out/f*`,
			want: "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n",
		},
		{
			name: "a build that is interrupted",
			script: `printf 'RUN exec sleep 98763\n' | build & await 1 pgrep -c -x -f 'sleep 98763'
				pkill -INT -f "dockerfile=$W "; wait $! || echo failed; await '' pgrep -x -f 'sleep 98763'`,
			want: "failed\n",
		},
	})
}

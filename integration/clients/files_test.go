// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import "testing"

func TestDocker_Files(t *testing.T) {
	compare(t, shared, []clientCase{
		{
			name: "--mount: tmpfs, propagation",
			script: `mkdir $W/d; docker run -d --name box --mount type=bind,source=$W/d,target=/d,bind-propagation=rslave --mount type=tmpfs,target=/t,tmpfs-size=1m busybox sleep 1000 >/dev/null
				mkdir $W/d/m; mount -t tmpfs none $W/d/m; touch $W/d/m/f; docker exec box ls /d/m; umount $W/d/m
				docker exec box df -k /t | tail -1 | tr -s ' ' | cut -d' ' -f2`,
			want: "f\n1024\n",
		},
		{
			name:   "--mount readonly: what is mounted below",
			script: `mkdir -p $W/d/m; mount -t tmpfs none $W/d/m; docker run --rm --mount type=bind,source=$W/d,target=/d,readonly busybox touch /d/m/f 2>$W/err || cat $W/err; umount $W/d/m`,
			want:   "touch: /d/m/f: Read-only file system\n",
			ours:   "is writable: dockerd asks for recursive ones where it knows the runtime's features, and asks `runc` alone for them",
		},
		{
			name: "cp both ways, running and not",
			script: `echo hello >$W/f; docker create --name box busybox sleep 1000 >/dev/null; docker cp -q $W/f box:/a; docker start box; docker cp -q $W/f box:/b
				docker exec box cat /a /b; docker exec box sh -c 'echo bye >/c'; docker cp -q box:/c $W/c; cat $W/c; docker kill box; docker cp -q box:/a - | tar xO`,
			want: "box\nhello\nhello\nbye\nbox\nhello\n",
		},
		{
			name: "commit",
			script: `docker run --name box busybox sh -c 'echo x >/f'; docker commit -c 'CMD cat /f' box made >/dev/null; docker run --rm made
				docker rmi made >/dev/null; docker images -q | sort -u | wc -l`,
			want: "x\n1\n",
		},
		{
			name: "rename, and what lies under its name",
			script: `docker run -d --name box busybox sleep 1000 >/dev/null; docker rename box other; docker exec other echo hello; docker kill other
				docker start other; docker exec other echo again`,
			want: "hello\nother\nother\nagain\n",
		},
		{
			name:   "a file of the host on a directory: refused",
			script: `docker run --name box -v /etc/passwd:/tmp busybox true || echo $?; docker run --name other -w /etc/passwd busybox true || echo $?`,
			want:   "125\n125\n",
			mask:   words, reason: wordsReason,
		},
	})
}

#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# with-systemd.sh COMMAND [ARGUMENT...]
#
# Runs a command, with its directory, environment and output, as a service of a systemd of its own: pid 1 of a PID
# namespace, with cgroup v2 alone. All that it needs of the machine is cgroup v2, at /sys/fs/cgroup or beside v1. Nothing
# of it is seen from outside but its processes, and nothing is left of it. Run as root.

set -eu

[ $# -gt 0 ] || { sed -n '5,9s/^# \?//p' "$0" >&2; exit 2; }
if [ "$1" != --inside ]; then
	[ -x /lib/systemd/systemd ] || { echo "$0: /lib/systemd/systemd is absent: apt-get install systemd" >&2; exit 2; }
	[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] && top=/sys/fs/cgroup || top=/sys/fs/cgroup/unified
	dir=$(mktemp -d)
	group=$top/shim-test-systemd-$$
	mkdir "$group"
	# The cgroups below are empty: the namespace has ended, and its processes with it.
	trap 'find "$group" -depth -type d -exec rmdir {} +; rm -r "$dir"' EXIT
	{
		export -p
		printf 'cd %q || exit\nexec' "$PWD"
		printf ' %q' "$@"
	} >"$dir/command"
	mkfifo "$dir/output"
	cat "$dir/output" &
	status=0
	(
		echo "$BASHPID" >"$group/cgroup.procs"
		# Not unshare --fork of this shell: it would hold the fifo open.
		exec unshare --pid --fork --kill-child --mount --cgroup --uts --ipc "$0" --inside "$dir"
	) || status=$?
	exit "$status"
fi

dir=$2
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys # systemd sets what is the machine's
mount -o remount,bind,ro /proc/sys
mount -t tmpfs -o mode=755 run /run
# Those of v1 stay below.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/units
cat >/run/units/command.target <<-END
	[Unit]
	DefaultDependencies=no
	Requires=command.service
	After=command.service
END
cat >/run/units/command.service <<-END
	[Unit]
	DefaultDependencies=no
	SuccessAction=exit-force
	FailureAction=exit-force
	[Service]
	Type=exec
	ExecStart=/bin/bash $dir/command
	StandardOutput=file:$dir/output
	StandardError=inherit
	Delegate=yes
	LimitNOFILE=1048576
	TasksMax=infinity
END
# No unit, generator or configuration of the machine counts.
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=other SYSTEMD_UNIT_PATH=/run/units \
	SYSTEMD_GENERATOR_PATH=/nonexistent SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/nonexistent SYSTEMD_LOG_TARGET=null \
	/lib/systemd/systemd --system --unit=command.target --show-status=no

#!/bin/sh
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs before the package is removed, and refuses that while containers of the runtime run: containerd needs the binary to
# clean up after them. An upgrade goes on: shims that run keep the binary that they were started from. Arguments are those
# of the format: deb has "remove" or "upgrade", rpm how many versions stay, apk the version. apk goes on whatever this says.
set -eu

what='not removed, since'
todo='Remove them first: containerd could not clean up after them.'
case ${1:-} in
upgrade | failed-upgrade | deconfigure | [1-9]) exit 0 ;;
*.*)
	what='removed all the same by apk, while'
	todo='Install it again, and remove them first: containerd cannot clean up after them without it.'
	;;
esac

name='containerd-shim-sandbox-v1'
# Arguments alone do not tell a shim: anybody can start a program with those. Root in a container has another pid
# namespace.
is_shim() {
	exe=$(readlink "/proc/$1/exe") || return 1
	exe=${exe% (deleted)} # by an upgrade
	[ "${exe##*/}" = "$name" ] && [ "$(readlink "/proc/$1/ns/pid")" = "$(readlink /proc/self/ns/pid)" ] &&
		grep -qs '^Uid:[[:blank:]]*0[[:blank:]]' "/proc/$1/status"
}
running=$(
	# There may be more processes than a program can have arguments.
	printf '%s\n' /proc/[0-9]*/cmdline | xargs grep -ls "$name" | while read -r file; do
		pid=${file#/proc/}
		is_shim "${pid%/cmdline}" || continue
		args=$(tr '\0\n' '  ' 2>/dev/null <"$file") || continue
		case "/$args" in
		*/"$name -"*"-address "*)
			printf '%s\n' "$args" | sed -E 's/.* -namespace ([^ ]+).* -id ([^ ]+).*/    \2 in namespace \1/'
			;;
		esac
	done | LC_ALL=C tr -cd ' -~\n' # no escape sequence reaches the terminal
) || :
if [ -n "$running" ]; then
	cat >&2 <<-END
		$name: $what containers of the runtime run:

		$running

		$todo
	END
	exit 1
fi

config=/etc/containerd
dropin=$config/conf.d/$name.toml
if [ -e "$dropin" ] || grep -qsF "begin $name" "$config/config.toml"; then
	cat >&2 <<-END
		$name: containerd's configuration still has the handlers of the runtime. Before the removal, this would have
		taken them away: ${UNINSTALLER:-/usr/share/$name/install.sh uninstall --config-only}
		What is left of it: $dropin, and the lines of $config/config.toml
		that name $name.
	END
fi

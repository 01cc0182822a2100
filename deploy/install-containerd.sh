# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# The part of install.sh that deals with programs that run: the shim's, and containerd, its configuration and its restart.
# shellcheck shell=sh
# shellcheck disable=SC2154,SC2034 # variables of install.sh

daemon='' # the process of the containerd that systemd runs

# need_tools refuses a node without a program that is needed: without diff, say, all would look the same.
need_tools() {
	for tool in awk cat cmp cp date diff grep mktemp mv readlink rm rmdir sed sort sync tail timeout tr xargs; do
		command -v "$tool" >/dev/null || refuse "the program $tool is absent"
	done
}

# check_binary finds the shim that is to be installed, and runs it.
check_binary() {
	if ! $place; then
		binary=$shim
		[ -f "$binary" ] || refuse "--config-only: no $shim, which a package would have: name its directory with --bindir"
	elif [ -z "$binary" ]; then
		binary=$here/$name
		[ -e "$binary" ] || binary=$here/../bin/$name
	fi
	[ -f "$binary" ] || refuse "--binary \"$binary\": no such file (from source: make build; that of a package is in /usr/bin already)"
	printed=$("$binary" -v 2>&1) || refuse "$binary does not run on this node: $printed"
	release=$(say "$printed" | awk '$1 == "Version:" { print $2 }')
}

# daemon_pid prints the process id of the containerd that systemd runs, if any.
daemon_pid() {
	systemctl show --property MainPID containerd 2>/dev/null | sed -n 's/^MainPID=\([1-9][0-9]*\)$/\1/p'
}

# daemon_binary prints the program of a process. After an upgrade that is the one by which it will be restarted.
daemon_binary() { readlink "/proc/$1/exe" | sed 's/ (deleted)$//'; }

# argument PID NAMES prints the value that an option has in the command line of a process. NAMES are those of the option,
# separated by |.
argument() {
	tr '\0' '\n' <"/proc/$1/cmdline" | awk -v names="$2" '
		take { print; exit }
		$0 ~ "^--?(" names ")$" { take = 1 }
		$0 ~ "^--?(" names ")=" { sub(/^[^=]*=/, ""); print; exit }'
}

# find_containerd finds, unless --containerd says it, the binary of the daemon that will be restarted: there may be others
# in PATH.
find_containerd() {
	if [ -z "$restart" ]; then daemon=$(daemon_pid) || :; fi
	if [ -n "$daemon" ]; then
		if [ -z "$containerd" ]; then
			containerd=$(daemon_binary "$daemon")
			[ -x "$containerd" ] || containerd='' # it was moved
		fi
	fi
	if [ -z "$containerd" ]; then
		containerd=$(command -v containerd) || refuse "no containerd in PATH: name it with --containerd"
	fi
	[ -x "$containerd" ] || refuse "--containerd \"$containerd\": no such program"
	version=$("$containerd" --version | awk '{ sub(/^v/, "", $3); print $3 }') || refuse "$containerd --version fails"
	major=${version%%.*}
	minor=${version#*.}
	minor=${minor%%.*}
	case $major.$minor in
	*[!0-9.]* | .* | *.) refuse "$containerd: version \"$version\" is not of the form 2.4.2" ;;
	1.[0-5] | 0.*) refuse "containerd $version: want 1.6 or later" ;;
	esac
	if [ -z "$ctr" ]; then
		ctr=$(dirname "$containerd")/ctr
		[ -x "$ctr" ] || ctr=$(command -v ctr) || refuse "no ctr beside $containerd or in PATH: name it with --ctr"
	fi
	[ -x "$ctr" ] || refuse "--ctr \"$ctr\": no such program"
}

# find_daemon checks, if systemd runs containerd, that it is this one and reads $config.
find_daemon() {
	[ -z "$restart" ] || return 0
	[ -d /run/systemd/system ] || refuse "systemd does not run here: say how to restart containerd with --restart"
	restart='systemctl restart containerd'
	[ -n "$daemon" ] || return 0 # it does not run
	runs=$(daemon_binary "$daemon")
	if [ -x "$runs" ] && [ "$(readlink -f "$containerd")" != "$runs" ] && [ "$("$runs" --version)" != "$("$containerd" --version)" ]; then
		refuse "containerd, pid $daemon, is $runs, of another version than --containerd $containerd"
	fi
	reads=$(argument "$daemon" 'c|config')
	reads=${reads:-/etc/containerd/config.toml}
	[ "$reads" = "$config" ] ||
		refuse "containerd, pid $daemon, reads $reads: say --config $reads"
}

# check_path checks that the containerd that systemd runs finds the shim in $bindir. Its own plugin adds /opt/containerd/bin.
check_path() {
	[ -n "$daemon" ] || return 0
	finds=$(tr '\0' '\n' <"/proc/$daemon/environ" | sed -n 's/^PATH=//p')
	case ":/opt/containerd/bin:$finds:$(dirname "$(readlink "/proc/$daemon/exe")"):" in
	*":$bindir:"*) ;;
	*) refuse "--bindir $bindir is not in the PATH of containerd, pid $daemon: $finds" ;;
	esac
}

# dump CONFIG NAME has containerd read a configuration and writes the result to $work/NAME. It fails if containerd
# cannot read it.
dump() {
	"$containerd" --config "$1" config dump >"$work/$2" 2>"$work/error" && [ -s "$work/$2" ]
}

# flat NAME prints a dump as sorted lines "table|key = value". It leaves out this runtime's handlers, the list of files,
# and values that are the default, since containerd prints those only for tables that exist.
flat() {
	awk -v q="'" '
		/^[ \t]*\[+[^=]*\]+[ \t]*$/ {
			table = $0
			gsub("[][ \t\"" q "]", "", table)
			next
		}
		NF == 0 || table ~ /\.runtimes\.sandbox(-pauseless)?(\.|$)/ { next }
		table == "" && /^(imports|version) = / { next }
		/ = (""|false|0|\[\]|\{\})$/ || $0 ~ " = " q q "$" { next }
		/ (sandboxer|sandbox_mode) = .podsandbox.$/ { next }
		{ sub(/^[ \t]+/, ""); print table "|" $0 }' "$work/$1" | sort
}

# handlers NAME prints the handlers of this runtime in a dump.
handlers() {
	awk -v q="'" -v runtime="$runtime" '
		/^[ \t]*\[/ {
			handler = $0
			if (!sub(/^[ \t]*\[plugins\..*\.containerd\.runtimes\./, "", handler)) handler = ""
			sub(/\].*/, "", handler)
			gsub("[\"" q "]", "", handler)
		}
		handler != "" && /^[ \t]*runtime_type = / {
			gsub("[\"" q "]", "")
			if ($3 == runtime) print handler
		}' "$work/$1" | sort | tr '\n' ' ' | sed 's/ $//'
}

# address NAME prints the socket of a dump.
address() {
	awk -v q="'" '
		/^[ \t]*\[/ { table = $0; gsub("[][ \t\"" q "]", "", table) }
		(table == "grpc" || table == "plugins.io.containerd.server.v1.grpc") && $1 == "address" {
			gsub("[\"" q "]", "", $3)
			print $3
			exit
		}' "$work/$1"
}

client() { "$ctr" --address "$socket" --connect-timeout 2s --timeout 10s "$@"; }

# broken_cri prints the CRI plugins that containerd could not load. It starts without them, and kubelet then fails.
broken_cri() {
	client plugins ls >"$work/plugins" || return 1
	awk '($1 ~ /\.cri\.v1$/ || $2 == "cri") && $4 == "error" { print $1 "." $2 }' "$work/plugins"
}

# is_shim PID reports whether a process is a shim. Arguments alone do not tell: anybody can start a program with those.
# Root in a container has another pid namespace.
is_shim() {
	exe=$(readlink "/proc/$1/exe") || return 1
	exe=${exe% (deleted)} # by an upgrade
	[ "${exe##*/}" = "$name" ] && [ "$(readlink "/proc/$1/ns/pid")" = "$(readlink /proc/self/ns/pid)" ] &&
		grep -qs '^Uid:[[:blank:]]*0[[:blank:]]' "/proc/$1/status"
}

# users prints the containers and shims of this runtime, and if the binary is to be removed, what else runs from it. It
# fails if containerd does not list its containers.
users() {
	namespaces=$(client namespaces ls -q) || return 1
	for namespace in $namespaces; do
		client --namespace "$namespace" containers ls >"$work/list" || return 1
		awk -v namespace="$namespace" -v runtime="$runtime" -v name="/$name" '
			NR > 1 && ($NF == runtime || substr($NF, length($NF) - length(name) + 1) == name) {
				print "container " $1 " in namespace " namespace
			}' "$work/list"
	done
	removed=''
	if $place && [ -e "$shim" ]; then removed=$(readlink -f "$shim") || return 1; fi
	# There may be more processes than a program can have arguments.
	printf '%s\n' /proc/[0-9]*/cmdline | xargs grep -ls "$name" | while read -r file; do
		pid=${file#/proc/}
		pid=${pid%/cmdline}
		is_shim "$pid" || continue
		args=$(tr '\0' ' ' 2>/dev/null <"$file") || continue
		case "/$args" in
		*/"$name -"*"-address $socket "*) say "shim, pid $pid" ;;
		*/"$name -"*"-address "*)
			[ "$exe" = "$removed" ] || continue
			address=${args##*-address }
			say "shim, pid $pid, of the containerd at ${address%% *}" ;;
		esac
	done | tr -cd ' -~\n' # no escape sequence reaches the terminal
}

# answers waits until containerd answers, with CRI unless that was broken before.
answers() {
	deadline=$(($(date +%s) + timeout))
	until client version >"$work/answer" 2>&1; do
		if [ "$(date +%s)" -ge "$deadline" ]; then
			complain "containerd does not answer on $socket after $timeout s: $(tail -n 1 "$work/answer")"
			return 1
		fi
		sleep 0.5
	done
	broken=$(broken_cri) || return 1
	[ -n "$broken" ] || return 0
	if [ "$broken" = "$broken_before" ]; then
		complain "containerd could not load $broken: neither could it before"
		return 0
	fi
	complain "containerd could not load $broken"
	return 1
}

do_restart() {
	say "restarting containerd: $restart"
	timeout "$timeout" sh -c "$restart" </dev/null 9>&- && return 0
	complain "\"$restart\" fails with status $?"
	return 1
}

# state NAME prints the state directory of a dump.
state() { awk -v q="'" '/^[ \t]*\[/ { exit } $1 == "state" { gsub("[\"" q "]", "", $3); print $3; exit }' "$work/$1"; }

# upgrade_shims has running shims become the installed one, if that is asked for. The installation is done by then, and a
# shim that refuses goes on with its former program: so nothing that happens here is a failure of install.sh.
upgrade_shims() {
	[ "$upgrade" = true ] || return 0
	for tool in "$here/sandboxctl" "$here/../bin/sandboxctl" "$(command -v sandboxctl)"; do
		[ -x "$tool" ] || continue
		set -- upgrade --all
		[ ! -e "$work/before" ] || set -- --address "$socket" --state "$(state before)" "$@"
		say "running shims: $tool $*"
		"$tool" "$@" </dev/null 2>&1 9>&- || complain "shims that were not upgraded keep their former program"
		return 0
	done
	complain "no sandboxctl beside this script, in ../bin or in PATH: running shims keep their former program"
}

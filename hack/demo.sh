#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs containers through a containerd of its own and shows each command with its output. It checks the output: the
# first unexpected one ends the demo with an error. Outside $work it writes only a cgroup named after the demo and the
# state directory of its namespace. The last step checks that both are gone.
#
#   RUNTIME       runtime to show; io.containerd.runc.v2 shows the same steps on the runc shim
#   SHIM_BINARY   the shim to show
#   SANDBOXCTL    the operator's tool
#   SHIM_TOOLS    directory with containerd and ctr; built by default
set -euo pipefail
cd "$(dirname "$0")/.."

RUNTIME=${RUNTIME:-io.containerd.sandbox.v1}
SHIM_BINARY=${SHIM_BINARY:-$PWD/bin/containerd-shim-sandbox-v1}
SANDBOXCTL=${SANDBOXCTL:-$PWD/bin/sandboxctl}

ns=shim-demo-$$
work=/run/$ns # short: the path of a unix socket has 107 bytes
installed=    # where the shim is installed for the demo; programs in /run cannot be executed on most machines
state=/run/containerd/runc/$ns
image=demo.local/busybox:latest
containerd_pid=
events_pid=
current_pid=
step=0
bold= plain=
[ ! -t 1 ] || { bold=$'\033[1m' plain=$'\033[0m'; }

# --- saying and checking ----------------------------------------------------------------------------------------------

say() { printf '\n%s%d. %s%s\n' "$bold" "$((step += 1))" "$*" "$plain"; }

fail() {
	printf '\nNOT AS SAID: %s\n' "$*" >&2
	if [ -s "$work/containerd.log" ]; then
		echo "Last lines of containerd's log:" >&2
		tail -n 20 "$work/containerd.log" >&2
	fi
	exit 1
}

# run STATUS COMMAND... shows the command, runs it with $work/in as its input, and shows its output. It writes the
# output to $work/out without the carriage returns of a terminal. A signal interrupts `wait`, so Ctrl-C acts at once.
run() {
	local want=$1 got=0
	shift
	printf '   $ %s\n' "${*@Q}" | sed -E "s|'([A-Za-z0-9_./:=,@%+-]+)'|\1|g"
	timeout 30 "$@" >"$work/raw" 2>&1 <"$work/in" &
	current_pid=$!
	wait "$current_pid" || got=$?
	current_pid=
	tr -d '\r' <"$work/raw" >"$work/out"
	sed 's/^/     /' "$work/out"
	[ "$got" -eq "$want" ] || fail "exit status $got, want $want"
}

# answer PATTERN checks that the last output has a line that matches.
answer() { grep -Eq -- "$1" "$work/out" || fail "no line of the answer matches: $1"; }

# eventually WHAT COMMAND... checks that the command succeeds within 10 s.
eventually() {
	local what=$1 end=$((SECONDS + 10))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || fail "$what: not within 10 s"
		sleep 0.05
	done
}

ok() { printf '   ok: %s\n' "$*"; }

# --- what could be left -----------------------------------------------------------------------------------------------

processes() { # shims and other processes of the demo
	local dir cmd
	for dir in /proc/[0-9]*; do
		cmd=$(tr '\0' ' ' 2>/dev/null <"$dir/cmdline") || continue
		case $cmd in
		*"-namespace $ns "*) echo "process ${dir#/proc/}: $cmd" ;;
		esac
	done
}

groups() { find /sys/fs/cgroup -depth -mindepth 1 -type d -path "*/$ns/*" 2>/dev/null || true; }

# leftovers lists what the runtime should have removed with the last container.
leftovers() {
	processes
	groups | sed 's/^/cgroup /'
	grep -o " $work/state/[^ ]*" /proc/self/mountinfo | sed 's/^/mount/' || true
	find "$work/s" "$work/state/io.containerd.runtime.v2.task/$ns" "$state" -mindepth 1 2>/dev/null | sed 's/^/file /' || true
}

# --- cleaning up ------------------------------------------------------------------------------------------------------

# cleanup runs on every exit. It does not trust the runtime: after containerd has deleted the containers, it kills the
# processes that are left in the demo's cgroups, and the shims of the demo's namespace.
cleanup() {
	local status=$? container pid dir
	trap '' INT TERM
	trap - EXIT
	set +e
	[ -z "$current_pid" ] || kill "$current_pid" 2>/dev/null
	if [ -n "$containerd_pid" ] && kill -0 "$containerd_pid" 2>/dev/null; then
		for container in $(timeout 5 ctr containers list -q 2>/dev/null); do
			timeout 5 ctr tasks resume "$container" >/dev/null 2>&1
			timeout 5 ctr tasks delete --force "$container" >/dev/null 2>&1
			timeout 5 ctr containers delete "$container" >/dev/null 2>&1
		done
	fi
	[ -z "$events_pid" ] || kill "$events_pid" 2>/dev/null
	if [ -n "$containerd_pid" ]; then
		kill "$containerd_pid" 2>/dev/null
		wait "$containerd_pid" 2>/dev/null
	fi
	for pid in $(processes | sed -n 's/^process \([0-9]*\):.*/\1/p'); do kill -KILL "$pid" 2>/dev/null; done
	for dir in $(groups); do
		[ ! -e "$dir/freezer.state" ] || echo THAWED >"$dir/freezer.state"
		for pid in $(cat "$dir/cgroup.procs" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
	done
	grep -o " $work/[^ ]*" /proc/self/mountinfo | tac | while read -r dir; do umount -l "$dir"; done
	for dir in $(groups) $(find /sys/fs/cgroup -maxdepth 2 -type d -name "$ns"); do
		for _ in $(seq 100); do rmdir "$dir" 2>/dev/null && break || sleep 0.05; done # a killed process leaves its cgroup late
	done
	rm -rf "$work" "$state" "$installed"

	echo
	echo "Cleaned up. What is left of the demo (processes, mounts, cgroups, files):"
	left=$({
		processes
		grep " $work" /proc/self/mountinfo
		find /sys/fs/cgroup -type d -name "$ns*"
		ls -d "$work" "$state" "$installed"
	} 2>/dev/null)
	if [ -n "$left" ]; then
		echo "$left"
		[ "$status" -ne 0 ] || status=1
	else
		echo "   nothing"
	fi
	case $status in
	0) echo && echo "All $step steps were as said, in $SECONDS s." ;;
	130) echo && echo "Interrupted." ;;
	esac
	exit "$status"
}

# --- preparing --------------------------------------------------------------------------------------------------------

# make_image writes an image with busybox as its only layer, in the form that `docker save` uses.
make_image() {
	local root=$work/image/root sum
	mkdir -p "$root/bin" "$root/etc" "$root/tmp"
	cp "$(command -v busybox)" "$root/bin/busybox"
	"$root/bin/busybox" --list | while read -r applet; do
		[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
	done
	echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
	tar -C "$root" --owner=0 --group=0 -cf "$work/image/layer.tar" .
	sum=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
	printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/bin"],"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$(go env GOARCH)" "$sum" >"$work/image/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$image" >"$work/image/manifest.json"
	tar -C "$work/image" -cf "$work/image.tar" manifest.json config.json layer.tar
}

# The memory step needs a limit that swap does not stretch. ctr has no flag for it, so the parent cgroup has.
forbid_swap() {
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		echo +memory >/sys/fs/cgroup/cgroup.subtree_control
		mkdir "/sys/fs/cgroup/$ns"
		[ ! -e "/sys/fs/cgroup/$ns/memory.swap.max" ] || echo 0 >"/sys/fs/cgroup/$ns/memory.swap.max"
	else
		mkdir "/sys/fs/cgroup/memory/$ns"
		echo 0 >"/sys/fs/cgroup/memory/$ns/memory.swappiness" # child cgroups inherit it
	fi
}

start_containerd() {
	cat >"$work/config.toml" <<-EOF
		version = 3
		root = "$work/root"
		state = "$work/state"
		disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
		[debug]
		  level = "warn"
		[grpc]
		  address = "$work/containerd.sock"
		[plugins."io.containerd.shim.v1.manager"]
		  socket_dir = "$work/s"
	EOF
	# A session of its own: Ctrl-C must not reach it, cleanup needs it.
	setsid containerd --config "$work/config.toml" >"$work/containerd.log" 2>&1 </dev/null &
	containerd_pid=$!
	eventually "containerd answers" timeout 5 ctr version >/dev/null 2>&1
}

if [ "$(id -u)" -ne 0 ]; then
	echo "The demo mounts, and makes cgroups and namespaces: run it as root: sudo make demo" >&2
	exit 1
fi
if [ "$RUNTIME" = io.containerd.sandbox.v1 ] && [ ! -x "$SHIM_BINARY" ]; then
	echo "$SHIM_BINARY is absent: make build" >&2
	exit 1
fi
if [ -z "${SHIM_TOOLS:-}" ]; then
	echo "Building containerd and ctr (once; they stay in the cache) ..."
	SHIM_TOOLS=$(cd integration && go run ./cmd/tools)
fi
SECONDS=0

trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir -m 0700 "$work"
: >"$work/in"
installed=$(mktemp -d)
cp "$SHIM_BINARY" "$installed/containerd-shim-sandbox-v1"
export PATH=$installed:$(dirname "$SANDBOXCTL"):$SHIM_TOOLS:$PATH
export CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 # ctr warns of cgroup v1 with every command
export CONTAINERD_ADDRESS=$work/containerd.sock CONTAINERD_NAMESPACE=$ns CONTAINERD_SNAPSHOTTER=native

# --- the demo ---------------------------------------------------------------------------------------------------------

say "A private containerd, with its own root, state and sockets in $work"
make_image
forbid_swap
start_containerd
echo "   Every ctr below is told where it is by its environment:"
echo "   CONTAINERD_ADDRESS=$CONTAINERD_ADDRESS CONTAINERD_NAMESPACE=$ns CONTAINERD_SNAPSHOTTER=native"
run 0 ctr version
timeout 120 ctr events >"$work/events" 2>&1 </dev/null &
events_pid=$!
ok "containerd runs, pid $containerd_pid"

say "An image of nothing but Debian's static busybox; no registry is asked"
run 0 ctr images import --local "$work/image.tar"
answer "$image"

say "A container: it prints a line and exits with status 3"
run 3 ctr run --rm --runtime "$RUNTIME" "$image" hello sh -c 'echo "pid $$ on $(uname -s)"; exit 3'
answer '^pid 1 on Linux$'
ok "the output came back, and so did the exit status"

say "A container that stays; its shim is a process of its own"
run 0 ctr run --detach --runtime "$RUNTIME" "$image" demo sh -c 'while :; do echo x >>/count; usleep 50000; done'
run 0 ctr tasks list
answer '^demo +[0-9]+ +RUNNING'
pid=$(awk '$1 == "demo" { print $2 }' "$work/out")
processes | sed 's/^/   /'
ok "pid $pid is the container's first process"

say "An exec: a second process in the same container"
run 7 ctr tasks exec --exec-id second demo sh -c 'echo "first process: $(tr "\0" " " </proc/1/cmdline | cut -c1-8)"; exit 7'
answer '^first process: sh -c'
ok "it saw the container's pid 1, and its own exit status came back"

say "A terminal: an exec with a pty; script(1) plays the person who types a line"
echo 'hello, container' >"$work/in"
run 5 script -qec "ctr tasks exec --tty --exec-id terminal demo sh -c 'tty; read -r line; echo \"read: \$line\"; exit 5'" /dev/null
: >"$work/in"
answer '^/dev/pts/[0-9]+$'
answer '^read: hello, container$'
ok "the process has a terminal, and what was typed arrived"
if grep -q 'resize pty' "$work/out"; then
	echo "   (ctr set the window's size too late: the program had read its line, and was done)"
fi

say "Statistics, read from the container's cgroup"
run 0 ctr tasks metrics demo
answer '^(memory.usage_in_bytes|memory.usage) +[1-9]'
answer '^(pids.current) +[1-9]'
ok "memory and process count are not zero"

say "Pause: the container's counter stands still; resume: it goes on"
count() { stat -c %s "/proc/$pid/root/count"; }
moved() { [ "$(count)" -gt "$1" ]; }
eventually "the counter moves" moved "$(count)"
run 0 ctr tasks pause demo
run 0 ctr tasks list
answer '^demo +[0-9]+ +PAUSED'
before=$(count)
sleep 0.5
[ "$(count)" -eq "$before" ] || fail "the counter went from $before to $(count) while paused"
ok "count $before before and after half a second"
run 0 ctr tasks resume demo
eventually "the counter moves again" moved "$before"
ok "count $(count) after resume"

# docs/upgrade.md. No other shim can.
if [ "$RUNTIME" = io.containerd.sandbox.v1 ]; then
	say "A new version of the shim, under the running container: the process stays, its program changes"
	shim=$(awk '/^PPid/ { print $2 }' "/proc/$pid/status")
	run 0 install -m 0755 "$SHIM_BINARY" "$installed/containerd-shim-sandbox-v1"
	run 0 sandboxctl --address "$CONTAINERD_ADDRESS" --state "$work/state" ps
	answer ' demo .*\*'
	before=$(count)
	run 0 sandboxctl --address "$CONTAINERD_ADDRESS" --state "$work/state" upgrade demo
	eventually "the counter moves" moved "$before"
	[ "/proc/$shim/exe" -ef "$installed/containerd-shim-sandbox-v1" ] || fail "shim $shim has its former program"
	ok "shim $shim executes the new program, and the container has not noticed"
fi

say "Kill: SIGKILL ends it with status 137, which is 128 + 9"
run 0 ctr tasks kill --signal SIGKILL demo
stopped() { timeout 5 ctr tasks list </dev/null | grep -Eq '^demo +[0-9]+ +STOPPED'; }
eventually "the task is stopped" stopped
run 0 ctr tasks delete demo
answer 'exit code 137'
run 0 ctr containers delete demo

# docs/executors.md: readiness, sockets, limits of execs. The runc shim has none of these.
if [ "$RUNTIME" = io.containerd.sandbox.v1 ]; then
	say "A service: start returns when it is ready, its socket is open before it runs, and an exec that takes too long ends whole"
	cat >"$work/service.sh" <<-'SCRIPT'
		echo "sockets: $LISTEN_FDNAMES" >/told
		rm /dev/log && ln -s "$NOTIFY_SOCKET" /dev/log # logger sends to it
		(echo .; sleep 1000) | logger -t "$(printf 'x\nSTATUS=serving\nREADY=1\nx')"
	SCRIPT
	echo 'AllowUnsafeAnnotations = ["host-rootfs", "pid-file", "listen"]' >"$work/allow.toml"
	run 0 ctr run --detach --runtime "$RUNTIME" --runtime-config-path "$work/allow.toml" --annotation "$RUNTIME/notify=true" \
		--annotation "$RUNTIME/listen=log=unix:///dev/log?type=dgram web=tcp://0.0.0.0:80" \
		--annotation "$RUNTIME/exec-limits=wall-time=1s" \
		--mount "type=bind,src=$work/service.sh,dst=/service.sh,options=bind:ro" "$image" service sh /service.sh
	run 0 ctr tasks exec --exec-id told service cat /told
	answer '^sockets: log:web$'
	run 137 ctr tasks exec --exec-id probe service sh -c 'setsid sleep 999 & sleep 998; true'
	run 1 ctr tasks exec --exec-id look service sh -c 'ps -o args | grep "^sleep 99"'
	ok "it said that it is ready, had its sockets, and the probe that hung left nothing behind"
	run 0 ctr tasks delete --force service
	run 0 ctr containers delete service
fi

# docs/density.md and docs/idle.md. No other shim has these.
if [ "$RUNTIME" = io.containerd.sandbox.v1 ]; then
	say "Two sandboxes share a shim, sleep when nobody uses them, and wake for an exec"
	printf 'PodsPerShim = 50\nIdle = "after=1s"\n' >"$work/dense.toml"
	for name in one two; do
		run 0 ctr run --detach --runtime "$RUNTIME" --runtime-config-path "$work/dense.toml" "$image" "$name" sleep 1000
	done
	asleep() { sandboxctl --address "$CONTAINERD_ADDRESS" --state "$work/state" ps >"$work/ps" && [ "$(grep -c asleep "$work/ps")" = 2 ]; }
	eventually "both sleep" asleep
	run 0 sandboxctl --address "$CONTAINERD_ADDRESS" --state "$work/state" ps
	shims=$(processes | grep -c -- ' -id ')
	[ "$shims" -eq 1 ] || fail "there are $shims shims"
	run 0 ctr tasks exec --exec-id woken one echo awake
	answer '^awake$'
	ok "one shim has both, and the exec woke the first"
	for name in one two; do
		run 0 ctr tasks delete --force "$name"
		run 0 ctr containers delete "$name"
	done
fi

say "A memory limit of 16 MiB and a program that wants 64: the kernel kills it"
run 137 ctr run --rm --memory-limit 16777216 --runtime "$RUNTIME" "$image" hungry dd if=/dev/zero of=/dev/null bs=64M count=1
told() { grep -q '/tasks/delete.*hungry' "$work/events"; }
eventually "the events arrive" told
echo "   What \`ctr events\` heard of it:"
grep '/tasks/.*hungry' "$work/events" | cut -d' ' -f5- | cut -c1-150 | sed 's/^/     /'
order=$(sed -nE 's|.* /tasks/([a-z-]+) \{"container_id":"hungry".*|\1|p' "$work/events" | tr '\n' ' ')
if [ "$RUNTIME" = io.containerd.sandbox.v1 ]; then
	[ "$order" = "create start oom exit delete " ] || fail "events in the order: $order"
	ok "the OOM kill was told, and each event in its order: $order"
else
	[[ $order == *oom* ]] || fail "no /tasks/oom event"
	ok "the OOM kill was told; order: $order"
fi

# docs/executors.md: programs of the host, graceful stop. The runc shim has neither.
if [ "$RUNTIME" = io.containerd.sandbox.v1 ]; then
	say "A program of the host in a sandbox without an image: its directories, read-only and without its secrets"
	mkdir "$work/empty"
	run 0 ctr run --rm --rootfs --runtime "$RUNTIME" --runtime-config-path "$work/allow.toml" \
		--annotation "$RUNTIME/host-rootfs=default" "$work/empty" host \
		/bin/sh -c 'grep ^root: /etc/passwd; [ -e /etc/shadow ] || echo no shadow; touch /usr/file 2>/dev/null || echo read-only; touch /mine && echo written'
	for line in '^root:x:0:' '^no shadow$' '^read-only$' '^written$'; do answer "$line"; done
	[ -z "$(ls -A "$work/empty")" ] || fail "the directory is not empty any more"
	ok "the host was not written, and the directory is as empty as before"

	say "Graceful stop: a shim that gets SIGTERM gives its container the signal and the time that it asked for"
	run 0 ctr run --detach --runtime "$RUNTIME" --runtime-config-path "$work/allow.toml" \
		--annotation "$RUNTIME/stop-signal=QUIT" --annotation "$RUNTIME/stop-timeout=10s" \
		--annotation "$RUNTIME/pid-file=$work/web.pid" --mount "type=bind,src=$work,dst=/host,options=rbind:rw" "$image" web \
		sh -c 'trap "echo saved >/host/saved; exit" QUIT; echo >/host/ready; while :; do sleep 0.1; done'
	eventually "the container is ready" test -e "$work/ready"
	run 0 bash -c "kill -TERM \$(awk '/^PPid/ { print \$2 }' /proc/$(cat "$work/web.pid")/status)"
	forgotten() { ! timeout 5 ctr tasks list -q </dev/null | grep -qx web; }
	eventually "the shim is gone" forgotten
	run 0 cat "$work/saved"
	answer '^saved$'
	eventually "the pid file is gone" test ! -e "$work/web.pid"
	run 0 ctr containers delete web
	ok "it could save what it had, and its pid file went with it"
fi

say "What the runtime left behind: shims, cgroups, mounts, sockets, bundles, state"
for _ in $(seq 200); do # a shim ends after it has answered
	left=$(leftovers)
	[ -n "$left" ] || break
	sleep 0.05
done
[ -z "$left" ] || {
	echo "$left"
	fail "the runtime left these behind"
}
ok "nothing"

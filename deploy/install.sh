#!/bin/sh
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Installs the shim on one node, upgrades it under running containers, and removes it. `install.sh -h` says how.
#
# containerd must always be able to start. So the node's own containerd first reads a candidate of the new
# configuration. The result may differ from before in this runtime's handlers only. Then files are replaced, each by a
# rename, and containerd is restarted if necessary. If it does not answer, the former files are put back, and it is
# restarted again.
set -eu
LC_ALL=C CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 # ctr warns of cgroup v1 with every command
export LC_ALL CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS
umask 022

name='containerd-shim-sandbox-v1'
runtime=io.containerd.sandbox.v1
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

usage() {
	cat <<-END
		usage: install.sh install|uninstall [option...]

		  install     copies the shim and gives containerd the handlers "sandbox" and, from 2.3 on, "sandbox-pauseless".
		              Again with a newer shim it upgrades: running containers keep theirs, and containerd is not restarted.
		              With UPGRADE_SHIMS=true in the environment, they then get the new one, by sandboxctl upgrade --all.
		  uninstall   takes both away and leaves the former configuration; refused while containers of the runtime exist

		  --binary FILE       shim to install (default: $name beside this script, or in ../bin)
		  --bindir DIRECTORY  where containerd finds it (default: /usr/local/bin, or with --config-only /usr/bin)
		  --config FILE       containerd's configuration (default: /etc/containerd/config.toml)
		  --containerd FILE   the daemon's binary (default: the one that systemd runs, or that in PATH)
		  --ctr FILE          its client (default: the one beside the daemon, or in PATH)
		  --restart COMMAND   restarts containerd, returns when the former is gone (default: systemctl restart containerd)
		  --timeout SECONDS   how long containerd may take to restart, and then to answer (default: 60)
		  --config-only       leave the shim alone: it belongs to a package
		  --binary-only       leave the configuration alone: ctr, nerdctl and Docker need none
		  --dry-run           check everything, change nothing

		exit status: 0 done · 1 refused, nothing was changed · 2 usage · 3 it failed, the former files are back and containerd
		answers · 4 it failed, and containerd does not answer or a former file could not be put back
	END
}

say() { printf '%s\n' "$*"; }
complain() { printf 'install.sh: %s\n' "$*" >&2; }

# refuse ends the script with status 1, or with 3 or 4 if files were changed (finish).
refuse() {
	complain "$*"
	exit 1
}

misused() {
	complain "$*"
	usage >&2
	exit 2
}

# --- arguments --------------------------------------------------------------------------------------------------------

binary='' bindir='' config=/etc/containerd/config.toml containerd='' ctr='' restart='' timeout=60
configure=true place=true dry=false

action=${1:-}
case $action in
install | uninstall) shift ;;
-h | --help)
	usage
	exit 0
	;;
'') misused "install or uninstall?" ;;
*) misused "\"$action\": want install or uninstall" ;;
esac
while [ $# -gt 0 ]; do
	case $1 in
	--binary-only) configure=false ;;
	--config-only) place=false ;;
	--dry-run) dry=true ;;
	-h | --help)
		usage
		exit 0
		;;
	--binary | --bindir | --config | --containerd | --ctr | --restart | --timeout)
		[ -n "${2:-}" ] || misused "$1: a value is missing"
		case $1 in
		--binary) binary=$2 ;;
		--bindir) bindir=$2 ;;
		--config) config=$2 ;;
		--containerd) containerd=$2 ;;
		--ctr) ctr=$2 ;;
		--restart) restart=$2 ;;
		--timeout) timeout=$2 ;;
		esac
		shift
		;;
	*) misused "\"$1\": no such option" ;;
	esac
	shift
done
upgrade=${UPGRADE_SHIMS:-false}
case $upgrade in
true | false) ;;
*) misused "UPGRADE_SHIMS=\"$upgrade\": want true or false" ;;
esac
case $timeout in
'' | *[!0-9]* | 0) misused "--timeout \"$timeout\": want a number of seconds, 1 or more" ;;
esac
$configure || $place || misused "--binary-only and --config-only: want one of them"
if ! $place && [ -n "$binary" ]; then misused "--config-only: want no --binary"; fi
if [ -z "$bindir" ]; then
	if $place; then bindir=/usr/local/bin; else bindir=/usr/bin; fi
fi
for path in "$bindir" "$config"; do
	case $path in
	*[!A-Za-z0-9._/@+-]*) misused "\"$path\": want a path of letters, digits and ._/@+- only" ;;
	/*) ;;
	*) misused "\"$path\": want an absolute path" ;;
	esac
done

shim=$bindir/$name
conf_d=$(dirname "$config")/conf.d
dropin=$conf_d/$name.toml
backup=$config.before-sandbox
candidate=$config.sandbox-candidate # beside the real one, since imports may be relative to it
baseline=$config.sandbox-baseline
unfinished=$config.sandbox-unfinished # exists from the first change until containerd answers
mark_begin="# begin $name: install.sh writes and removes what is between these lines"
mark_end="# end $name"
dropin_head="# $name: install.sh writes and removes this file."
mark_import="imports = [\"$dropin\"] # $name"

[ "$(id -u)" -eq 0 ] || refuse "needs root"

for part in install-containerd.sh install-config.sh containerd-1.toml containerd-2.toml; do
	[ -r "$here/$part" ] || refuse "$here/$part is absent: it belongs beside this script"
done
# shellcheck source-path=SCRIPTDIR source=install-containerd.sh
. "$here/install-containerd.sh"
# shellcheck source-path=SCRIPTDIR source=install-config.sh
. "$here/install-config.sh"
need_tools

# --- undo -------------------------------------------------------------------------------------------------------------

work=$(mktemp -d)
former=$work/former
locked=false    # no other install.sh is at work
changed=false   # a file was replaced
restarted=false # containerd was asked to restart
made_etc=false  # the directory of the configuration was made

# keep FILE NAME saves a file as $former/NAME, if it exists.
keep() {
	if [ -e "$1" ]; then cp -p "$1" "$former/$2"; fi
}

# put FILE NAME restores FILE as it was at keep, or adds it to $lost.
put() {
	if [ -e "$former/$2" ]; then
		cmp -s "$1" "$former/$2" || replace "$1" "$former/$2"
	else
		rm -f "$1"
	fi || lost="$lost $1"
}

# put_all restores an imported file before the file that imports it, and removes it after that file.
put_all() {
	lost=
	if [ -e "$former/dropin" ]; then put "$dropin" dropin; fi
	put "$config" config
	put "$dropin" dropin
	put "$backup" backup
	! $place || put "$shim" shim # a package may have upgraded its own
	[ -z "$lost" ]
}

# flush FILE... has files and directories written to the disk: a rename may be there before what the file has.
flush() { sync "$@" 2>/dev/null || sync; } # that of busybox may take no names

# replace FILE SOURCE replaces FILE at once. It keeps its owner and mode; a new file has those of SOURCE.
replace() {
	if [ -e "$1" ]; then
		cp -p "$1" "$1.sandbox-part" && cat "$2" >"$1.sandbox-part"
	else
		cp -p "$2" "$1.sandbox-part"
	fi && flush "$1.sandbox-part" && mv -f "$1.sandbox-part" "$1" && flush "$(dirname "$1")"
}

# stage_shim SOURCE writes what is to replace the shim next to it. Running shims keep the former file.
stage_shim() {
	mkdir -p "$bindir" && cp "$1" "$shim.sandbox-part" && chmod 0755 "$shim.sandbox-part" && flush "$shim.sandbox-part"
}

# finish runs on every exit.
# shellcheck disable=SC2317 # by the trap
finish() {
	status=$?
	trap '' INT TERM HUP PIPE # by PIPE if nobody reads what is said any more
	trap - EXIT
	set +e
	if $changed && [ $status -ne 0 ]; then
		complain "going back to the former files"
		status=3
		if ! put_all; then
			complain "could not put back$lost: the former ones are in $former"
			status=4
		fi
		if $restarted; then
			do_restart || : # if it fails, the former containerd may still run
			if answers; then
				complain "containerd answers with its former configuration"
			else
				complain "containerd does not answer with its former configuration either: see its log"
				status=4
			fi
		fi
		! $configure || [ $status -ne 3 ] || rm -f "$unfinished" # otherwise the next run restarts containerd
		if [ -e "$former/no-conf.d" ]; then rmdir "$conf_d" 2>/dev/null; fi
	fi
	if $locked; then # or they are another one's
		rm -f "$candidate" "$baseline" "$config.sandbox-part" "$shim.sandbox-part" "$dropin.sandbox-part"
	fi
	if $made_etc; then rmdir "$(dirname "$config")" 2>/dev/null; fi # unless there are files in it
	[ $status -eq 4 ] || rm -rf "$work"
	exit $status
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 141' PIPE

# Only one install.sh runs at a time. The lock ends with the process.
if command -v flock >/dev/null; then
	(umask 077 && : >>"/run/$name.lock" && chmod 0600 "/run/$name.lock") # nobody else may open it, and so keep it locked
	exec 9<>"/run/$name.lock"
	flock -n 9 || refuse "another install.sh is at work on this machine"
fi
locked=true

# --- install and uninstall --------------------------------------------------------------------------------------------

# commit replaces the configuration by the planned one, and restarts containerd.
commit() {
	if $configure && settled; then
		say "$config: nothing to change"
		[ -e "$unfinished" ] || return 0
		say "an earlier run was cut short before containerd was restarted"
		changed=true
	elif $configure; then
		: >"$unfinished" || refuse "cannot write $unfinished"
		changed=true
		if [ -e "$work/new-dropin" ]; then # before it is imported
			[ -d "$conf_d" ] || mkdir "$conf_d" || refuse "cannot make $conf_d"
			replace "$dropin" "$work/new-dropin" || refuse "cannot write $dropin"
		fi
		if [ ! -e "$work/new" ]; then
			rm -f "$config" || refuse "cannot remove $config"
		elif ! cmp -s "$work/new" "$config"; then
			if [ "$action" = install ] && [ -e "$config" ] && [ ! -e "$backup" ]; then
				cp -p "$config" "$backup" || refuse "cannot write $backup"
			fi
			replace "$config" "$work/new" || refuse "cannot write $config"
		fi
		if [ ! -e "$work/new-dropin" ]; then # after it was imported
			rm -f "$dropin" || refuse "cannot remove $dropin"
		fi
		verify
		say "$config: changed, and containerd $version can read it"
	fi
	$configure || return 0
	restarted=true
	do_restart || refuse "containerd could not be restarted with the new configuration"
	answers || refuse "containerd did not come back as it should with the new configuration"
	say "containerd $version answers on $socket"
	rm -f "$unfinished"
}

do_install() {
	check_binary
	wanted=''
	if $configure; then
		find_containerd
		find_daemon
		read_baseline
		check_path
		if [ -n "$(handlers before)" ] && ! ours_is_there; then
			wanted=$(handlers before)
			say "$config has handlers that somebody else wrote, which stay: $wanted"
			configure=false
		else
			[ ! -e "$dropin" ] || dropin_is_ours || refuse "$dropin: somebody else wrote it, and it gives no handler"
			plan_install
		fi
	fi
	if $dry; then
		say "would install $release as $shim${wanted:+, and in $config the handlers $wanted}: nothing was changed"
		return 0
	fi
	remember
	if cmp -s "$binary" "$shim"; then
		say "$shim: is $release already"
	else
		stage_shim "$binary" || refuse "cannot write $shim: nothing was changed"
		changed=true
		{ mv -f "$shim.sandbox-part" "$shim" && flush "$bindir"; } || refuse "cannot write $shim"
		say "$shim: $release"
	fi
	commit
	changed=false
	if [ -n "$wanted" ]; then say "handlers: $wanted"; fi
	upgrade_shims
}

do_uninstall() {
	find_containerd
	if $configure; then find_daemon; fi
	read_baseline
	if $configure; then check_path; fi
	exist=$(users) || refuse "containerd does not tell which containers exist; nothing was changed"
	if [ -n "$exist" ]; then
		say "$exist" >&2
		refuse "these use the runtime: remove them first; nothing was changed"
	fi
	if $configure; then
		plan_uninstall
		check_former
	fi
	if $dry; then
		if $place; then what="$shim and "; else what=''; fi
		say "would remove ${what}what install.sh wrote to $config: nothing was changed"
		return 0
	fi
	remember
	commit
	exist=$(users) || refuse "containerd does not tell which containers exist"
	if [ -n "$exist" ]; then # one may have begun before the handlers went
		say "$exist" >&2
		refuse "these began meanwhile: remove them first"
	fi
	if ! $place; then
		say "$shim: stays, it belongs to a package"
	elif [ -e "$shim" ]; then
		changed=true
		rm -f "$shim" || refuse "cannot remove $shim"
		say "$shim: removed"
	else
		say "$shim: is not there; if it was installed with --bindir, give that again"
	fi
	changed=false
	if $configure; then
		rm -f "$backup"
		rmdir "$conf_d" 2>/dev/null || : # others may use it
	fi
}

do_"$action"

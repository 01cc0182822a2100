# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# The part of install.sh that plans containerd's new configuration in $work, checks it, and saves the former files. It
# replaces nothing.
#
# containerd 2.x merges imported files, so the tables go into a drop-in file; if necessary, an import is added to
# config.toml. In containerd 1.x an imported file replaces the whole section of a plugin, so the tables go to the end of
# config.toml.
# shellcheck shell=sh
# shellcheck disable=SC2154,SC2034 # variables of install.sh

# tables FILE HANDLER... prints the tables of the handlers from FILE, which is beside this script.
tables() {
	from=$here/$1
	shift
	for handler in "$@"; do
		awk -v end=".runtimes.$handler]" '
			/^\[/ { inside = substr($0, length($0) - length(end) + 1) == end; if (inside) print "" }
			inside && /^(\[|  )/' "$from"
	done
}

# stripped FILE prints a configuration without what this script added.
stripped() {
	[ -e "$1" ] || return 0
	awk -v begin="$mark_begin" -v end="$mark_end" -v path="$dropin" -v q="'" '
		function without(line, quote,    element, at) {
			element = quote path quote ", "
			at = index(line, element)
			return at ? substr(line, 1, at - 1) substr(line, at + length(element)) : line
		}
		{ bare = $0; sub(/[ \t\r]+$/, "", bare) } # an editor may have added that to a mark
		bare == begin { ours = 1 }
		ours { if (bare == end) ours = 0; next }
		{ # other programs that write the file change quotes, and drop comments
			bare = $0
			sub(/#.*/, "", bare)
			gsub("[ \t\"" q "]", "", bare)
			if (bare == "imports=[" path "]") next
			$0 = without(without($0, "\""), q)
			print
		}' "$1"
}

# dropin_is_ours reports whether there is a drop-in that this script wrote.
dropin_is_ours() { [ -e "$dropin" ] && [ "$(sed 1q "$dropin")" = "$dropin_head" ]; }

# made_here reports whether there is no configuration, or one that this script made and to which nobody added a line.
made_here() { [ ! -e "$config" ] || { [ ! -e "$backup" ] && ours_is_there && ! grep -qv '^version = [23]$' "$work/stripped"; }; }

# ours_is_there reports whether an earlier run gave handlers: in containerd 1.x they are in the block.
ours_is_there() { dropin_is_ours || grep -qsF "$mark_begin" "$config"; }

# file_version FILE prints the top-level version of a configuration, or nothing, which means version 1.
file_version() { awk '/^[ \t]*\[/ { exit } /^[ \t]*version[ \t]*=/ { sub(/#.*/, ""); sub(/.*=[ \t]*/, ""); print $1; exit }' "$1"; }

# imports FILE prints the top-level imports of a configuration.
imports() { awk '/^[ \t]*\[/ && !open { exit } /^[ \t]*imports[ \t]*=/ { open = 1 } open { sub(/#.*/, ""); print } open && /\]/ { exit }' "$1"; }

# missing_imports FILE prints the first import that does not exist. containerd 2.x does not start with it, but does not
# say so when it reads the file. One with a * may name nothing.
missing_imports() {
	imports "$1" | grep -oE "\"[^\"]*\"|'[^']*'" | sed 's/^.//; s/.$//' | while read -r file; do
		case $file in
		*\** | "$dropin") continue ;;
		/*) path=$file ;;
		*) path=$(dirname "$config")/$file ;;
		esac
		[ -e "$path" ] || say "$file"
	done | sed 1q
}

# imports_conf_d FILE reports whether a configuration imports all files of conf.d, as containerd's default does.
imports_conf_d() {
	imports "$1" | grep -qF -e "\"$conf_d/*.toml\"" -e "'$conf_d/*.toml'" -e '"conf.d/*.toml"' -e "'conf.d/*.toml'"
}

# imports_dropin FILE reports whether a configuration has the drop-in among its imports, in whatever form.
imports_dropin() { imports "$1" | grep -qF -e "\"$dropin\"" -e "'$dropin'"; }

# with_import FILE prints FILE with an import of the drop-in.
with_import() {
	if [ -n "$(imports "$1")" ]; then # add to the list
		awk -v element="\"$dropin\", " '
			/^[ \t]*imports[ \t]*=/ && !done { seen = 1 }
			seen && !done && (at = index($0, "[")) { done = 1; $0 = substr($0, 1, at) element substr($0, at + 1) }
			{ print }' "$1"
	elif [ -n "$(file_version "$1")" ]; then
		awk -v line="$mark_import" '{ print } /^[ \t]*version[ \t]*=/ && !done { done = 1; print line }' "$1"
	else
		say "$mark_import"
		cat "$1"
	fi
}

# with_block FILE HANDLER... prints FILE with the tables at its end. Tables of version 1 have shorter names.
with_block() {
	file=$1 short=''
	shift
	cat "$file"
	say "$mark_begin"
	case $(file_version "$file") in
	'' | 1) short='s/"io\.containerd\.grpc\.v1\.cri"/cri/' ;;
	esac
	tables containerd-1.toml "$@" | sed "$short"
	say "$mark_end"
}

# write FILE SOURCE copies SOURCE to FILE, with the owner and mode of the configuration, if that exists.
write() {
	if [ -e "$config" ]; then
		cp -p "$config" "$1" || return 1
	fi
	cat "$2" >"$1"
}

# same_otherwise BEFORE AFTER reports whether two dumps differ only in this runtime's handlers. Other differences are in
# $work/difference. busybox's diff has only the unified format.
same_otherwise() {
	flat "$1" >"$work/$1.flat"
	flat "$2" >"$work/$2.flat"
	diff -U 0 "$work/$1.flat" "$work/$2.flat" | sed -n '1,2d; s/^-/< /p; s/^+/> /p' >"$work/difference"
	[ ! -s "$work/difference" ]
}

# read_baseline writes containerd's dump of the configuration without this script's lines to $work/before, and that of
# the configuration as it is to $work/now. Nothing else may change in the latter: others may have added lines that need
# those of this script. If CRI does not work with it, it does not count.
read_baseline() {
	[ ! -L "$config" ] || refuse "$config is a symbolic link: something else manages it. $here/containerd-$((major > 1 ? 2 : 1)).toml has what to add"
	if [ -e "$config" ] && ! awk -v begin="$mark_begin" -v end="$mark_end" '
		{ sub(/[ \t\r]+$/, "") } $0 == begin { open = 1 } $0 == end { open = 0 } END { exit open + 0 }' "$config"; then
		refuse "$config: the line \"$mark_end\" is missing: put it back, or take out the lines that follow \"$mark_begin\""
	fi
	stripped "$config" >"$work/stripped"
	cp "$work/stripped" "$work/base"
	[ -s "$work/base" ] || say "version = $((major > 1 ? 3 : 2))" >"$work/base"
	if [ ! -d "$(dirname "$config")" ]; then
		mkdir -p "$(dirname "$config")" || refuse "cannot make $(dirname "$config")"
		made_etc=true
	fi
	write "$baseline" "$work/base" || refuse "cannot write $baseline: nothing was changed"
	dump "$baseline" before || refuse "containerd $version cannot read $config as it is now: $(tail -n 1 "$work/error")"
	missing=$(if $configure && [ "$major" -gt 1 ]; then missing_imports "$work/base"; fi)
	[ -z "$missing" ] || refuse "$config imports $missing, which does not exist: containerd would not start again"
	current=before
	if [ -e "$config" ] && dump "$config" now; then current=now; fi
	socket=$(address before)
	[ -n "$socket" ] || refuse "containerd $version does not tell its socket in: $containerd --config $config config dump"
	if broken_before=$(broken_cri 2>"$work/error"); then :; else
		[ "$action" = install ] || refuse "containerd does not answer on $socket, so nobody knows which containers exist: $(tail -n 1 "$work/error")"
		broken_before=''
		# after a run that was cut short it may be that run which broke it
		[ "$action" != install ] || [ -z "$daemon" ] || [ -e "$unfinished" ] ||
			refuse "containerd, pid $daemon, does not answer on $socket: $(tail -n 1 "$work/error")"
	fi
	[ -z "$broken_before" ] || current=before # as it is, it does not work
	[ "$action" = install ] || return 0
	if grep -E '^disabled_plugins = .*["'\''](cri|io\.containerd\.grpc\.v1\.cri|io\.containerd\.cri\.v1\.runtime)["'\'']' "$work/before" >/dev/null; then
		refuse "$config disables CRI, so no handler can be given: take it out of disabled_plugins, or say --binary-only"
	fi
	taken=$(awk -v q="'" -v runtime="$runtime" '
		/^[ \t]*\[/ { table = $0; gsub("[][ \t\"" q "]", "", table) }
		table ~ /\.runtimes\.sandbox(-pauseless)?$/ && $1 == "runtime_type" {
			gsub("[\"" q "]", "", $3)
			if ($3 != runtime) print "handler " table " is runtime \"" $3 "\""
		}' "$work/before")
	[ -z "$taken" ] || refuse "$config: $taken already: give that one another name"
}

# has_all HANDLERS reports whether all wanted handlers are in HANDLERS.
has_all() {
	for handler in $wanted; do
		case " $1 " in
		*" $handler "*) ;;
		*) return 1 ;;
		esac
	done
}

# fits reports whether the candidate has the handlers and nothing else differs.
fits() {
	same_otherwise "$current" after || return 1
	has_all "$(handlers after)" ||
		refuse "the handlers would not count, since a file that $config imports replaces the section of CRI: say --config with that file"
}

# plan_install writes the new configuration to $work/new and, for containerd 2.x, the new drop-in to $work/new-dropin.
plan_install() {
	if [ "$major" -eq 1 ]; then
		wanted=sandbox
		for list in sandbox "runc sandbox"; do
			# shellcheck disable=SC2086 # a list of words
			with_block "$work/base" $list >"$work/new"
			check_candidate || refuse "containerd $version does not read the new configuration: $(tail -n 1 "$work/error")"
			! fits || return 0
		done
	else
		wanted=sandbox
		if [ "$major" -gt 2 ] || [ "$minor" -ge 3 ]; then wanted='sandbox sandbox-pauseless'; fi
		{
			say "$dropin_head"
			say 'version = 3'
			# shellcheck disable=SC2086 # a list of words
			tables containerd-2.toml $wanted
		} >"$work/new-dropin"
		if imports_conf_d "$work/base" || imports_dropin "$work/base"; then
			cp "$work/base" "$work/new"
		else
			with_import "$work/base" >"$work/new"
		fi
		check_candidate || refuse "containerd $version does not read the new configuration: $(tail -n 1 "$work/error")"
		! fits || return 0
	fi
	complain "the handlers would change more than themselves (< now, > then):"
	cat "$work/difference" >&2
	refuse "$config: add the handlers by hand, $here/containerd-$((major > 1 ? 2 : 1)).toml has them; nothing was changed"
}

# check_candidate has containerd read the new configuration and drop-in from other paths than the real ones.
check_candidate() {
	if [ ! -e "$work/new-dropin" ]; then
		cp "$work/new" "$work/trial"
	else
		if imports_dropin "$work/new"; then cat "$work/new"; else with_import "$work/new"; fi |
			sed "s|\([\"']\)$dropin\([\"']\)|\1$work/new-dropin\2|g" >"$work/trial"
	fi
	write "$candidate" "$work/trial" || refuse "cannot write $candidate: nothing was changed"
	dump "$candidate" after
}

# plan_uninstall writes the former configuration to $work/new, or nothing if there was none.
plan_uninstall() {
	if [ -e "$dropin" ] && ! dropin_is_ours; then
		cp -p "$dropin" "$work/new-dropin" # it stays
	fi
	[ -e "$config" ] || return 0
	if ! grep -qF -e "$mark_begin" -e "$dropin" "$config"; then
		cp "$config" "$work/new"
		return 0
	fi
	if [ -e "$backup" ]; then
		# awk adds a newline to the last line if it has none.
		if awk '{ print }' "$backup" | cmp -s - "$work/stripped"; then cp "$backup" "$work/stripped"; fi
	elif made_here; then
		return 0
	fi
	cp "$work/stripped" "$work/new"
	[ -e "$work/new-dropin" ] || ! imports_dropin "$work/new" ||
		refuse "$config imports $dropin in a form that install.sh did not write: take it out of imports; nothing was changed"
}

# check_former has containerd read the former configuration. More than handlers changes without the lines of this script if,
# for example, a runtime has got options since, and its type is in these lines.
check_former() {
	[ -e "$work/new" ] || return 0
	check_candidate || refuse "containerd $version does not read the former configuration: $(tail -n 1 "$work/error")"
	! same_otherwise "$current" after || return 0
	complain "without what install.sh wrote, more than its handlers would change (< now, > then):"
	cat "$work/difference" >&2
	refuse "write that outside of the lines and the file that install.sh wrote, then try again; nothing was changed"
}

# settled reports whether the files are as planned.
settled() {
	if [ -e "$work/new" ]; then cmp -s "$work/new" "$config"; else [ ! -e "$config" ]; fi &&
		if [ -e "$work/new-dropin" ]; then cmp -s "$work/new-dropin" "$dropin"; else [ ! -e "$dropin" ]; fi
}

# verify has containerd read the real files, and compares the result with that of before.
verify() {
	if [ ! -e "$config" ]; then return 0; fi
	dump "$config" final || refuse "containerd $version cannot read the new files: $(tail -n 1 "$work/error")"
	same_otherwise "$current" final || {
		cat "$work/difference" >&2
		refuse "the new files change more than this runtime's handlers"
	}
	if [ "$action" = install ]; then
		have=$(handlers final)
		has_all "$have" || refuse "handlers are \"$have\" with the new files, want \"$wanted\""
	fi
}

# remember saves the files in $former.
remember() {
	mkdir -m 0700 "$former"
	keep "$config" config
	keep "$dropin" dropin
	keep "$backup" backup
	[ -d "$conf_d" ] || : >"$former/no-conf.d"
	! $place || keep "$shim" shim
}

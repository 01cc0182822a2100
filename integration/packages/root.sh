#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# root.sh SUITE: makes the root of guests, a clean Debian with containerd, unless the cache has it, and prints its directory.
# It also has what tests of other formats need, and of builds from source: rpm, a C compiler, make, libseccomp.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=$1
PATH=$PATH:/usr/sbin:/sbin

cache=$(realpath -m "${SHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/containerd-shim-sandbox-v1}")
root=$cache/packages-$suite-$(sha256sum "$0" | head -c 8)
if ! [ -d "$root" ]; then
	"$here/deps.sh" >&2
	mkdir -p "$cache"
	temp=$(mktemp -d "$cache/packages.XXXXXX")
	trap 'rm -rf --one-file-system "$temp"' EXIT # debootstrap mounts a procfs there, which stays if it is killed
	echo "installing Debian $suite (once; it stays in the cache)" >&2
	debootstrap --variant=minbase --include=busybox-static,containerd,gcc,libc6-dev,libseccomp-dev,make,rpm "$suite" \
		"$temp/root" >"$temp/log" 2>&1 || {
		tail -n 20 "$temp/log" >&2
		exit 1
	}
	rm -f "$temp"/root/var/cache/apt/archives/*.deb
	mv -T "$temp/root" "$root" 2>/dev/null || [ -d "$root" ] # another process may have been faster
fi
echo "$root"

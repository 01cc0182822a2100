#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# root.sh ARCH: makes the root of guests with another processor, unless the cache has it, and prints its directory. It
# has what tests run there, from Debian's packages, which are unpacked and not configured.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
arch=$1

if [ "$arch" != arm64 ]; then
	echo "no guests for $arch: its kernel and its qemu would be needed" >&2
	exit 1
fi
missing=()
command -v qemu-system-aarch64 >/dev/null || missing+=(qemu-system-arm)
command -v xz >/dev/null || missing+=(xz-utils)
PATH=$PATH:/usr/sbin:/sbin
command -v depmod >/dev/null || missing+=(kmod)
command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
"$here/../../hack/packages.sh" "${missing[@]}" >&2

cache=$(realpath -m "${SHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/containerd-shim-sandbox-v1}")
root=$cache/root-$arch-$(sha256sum "$0" | head -c 8)
if ! [ -d "$root" ]; then
	mkdir -p "$cache"
	temp=$(mktemp -d "$cache/root.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	echo "fetching Debian for $arch (once; it stays in the cache)" >&2
	"$here/../../hack/debian.sh" -d "$arch" "$temp/root" apparmor base-files base-passwd bash busybox-static \
		containernetworking-plugins coreutils dash e2fsprogs findutils gcc grep gzip iproute2 iptables kmod libc6-dev mount \
		procps sed strace tar util-linux xz-utils
	cd "$temp/root"
	# What the packages' scripts would do.
	ln -sf dash bin/sh
	for name in iptables iptables-restore iptables-save ip6tables ip6tables-restore ip6tables-save; do
		ln -s xtables-nft-multi "usr/sbin/$name"
	done
	cp usr/share/base-passwd/passwd.master etc/passwd
	cp usr/share/base-passwd/group.master etc/group
	echo "127.0.0.1 localhost" >etc/hosts
	echo "nameserver 127.0.0.1" >etc/resolv.conf
	mkdir -p media mnt opt srv var/tmp
	chmod 1777 tmp var/tmp
	mv -T "$temp/root" "$root" 2>/dev/null || [ -d "$root" ] # another process may have been faster
fi
echo "$root"

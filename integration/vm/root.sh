#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# root.sh ARCH [SUITE]: makes the root of guests with another processor or another Debian than the host's, unless the
# cache has it, and prints its directory. It has what tests run there, from Debian's packages, which are unpacked and
# not configured. For amd64 that includes systemd.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
arch=$1 suite=${2:-bookworm}

missing=() packages=()
case $arch in
amd64)
	command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
	packages=(dbus systemd)
	;;
arm64) command -v qemu-system-aarch64 >/dev/null || missing+=(qemu-system-arm) ;;
*)
	echo "no guests for $arch: its kernel and its qemu would be needed" >&2
	exit 1
	;;
esac
command -v xz >/dev/null || missing+=(xz-utils)
PATH=$PATH:/usr/sbin:/sbin
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
command -v depmod >/dev/null || missing+=(kmod)
command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
"$here/../../hack/packages.sh" "${missing[@]}" >&2

cache=$(realpath -m "${SHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/containerd-shim-sandbox-v1}")
root=$cache/root-$arch-$suite-$(sha256sum "$0" | head -c 8)
if ! [ -d "$root" ]; then
	mkdir -p "$cache"
	temp=$(mktemp -d "$cache/root.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	echo "fetching Debian $suite for $arch (once; it stays in the cache)" >&2
	"$here/../../hack/debian.sh" -d -s "$suite" "$arch" "$temp/root" apparmor base-files base-passwd bash busybox-static \
		containernetworking-plugins coreutils dash e2fsprogs findutils gcc grep gzip iproute2 iptables kmod libc6-dev mount \
		procps sed strace tar util-linux xz-utils "${packages[@]}"
	cd "$temp/root"
	# What the packages' scripts would do.
	ln -sf dash bin/sh
	for name in iptables iptables-restore iptables-save ip6tables ip6tables-restore ip6tables-save; do
		ln -s xtables-nft-multi "usr/sbin/$name"
	done
	cp usr/share/base-passwd/passwd.master etc/passwd
	cp usr/share/base-passwd/group.master etc/group
	echo "messagebus:x:100:100::/nonexistent:/usr/sbin/nologin" >>etc/passwd # the D-Bus daemon's
	echo "messagebus:x:100:" >>etc/group
	echo "127.0.0.1 localhost" >etc/hosts
	echo "nameserver 127.0.0.1" >etc/resolv.conf
	: >etc/machine-id # else systemd takes each boot for the first, and enables all units
	mkdir -p media mnt opt srv var/tmp
	chmod 1777 tmp var/tmp
	rm -rf var/run # clients look for D-Bus there
	ln -s /run var/run
	mv -T "$temp/root" "$root" 2>/dev/null || [ -d "$root" ] # another process may have been faster
fi
echo "$root"

#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks for the programs of the virtual machine, and of the guest, which has the host's. Installs them when it can.
# With the argument cgroup2 or systemd, a host that is like that itself needs none of them.
set -euo pipefail

on_v2() { [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; }
case ${1:-} in
cgroup2) ! on_v2 || exit 0 ;;
systemd) ! on_v2 || ! [ -d /run/systemd/system ] || exit 0 ;;
esac
if [ "$(uname -m)" != x86_64 ]; then
	echo "The virtual machine is for amd64 only; this machine is $(uname -m)" >&2
	exit 1
fi

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v xz >/dev/null || missing+=(xz-utils)
PATH=$PATH:/usr/sbin:/sbin
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring) # signs the kernels
command -v depmod >/dev/null || missing+=(kmod)
command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
command -v dbus-daemon >/dev/null || missing+=(dbus)
command -v criu >/dev/null || missing+=(criu)
command -v iptables-restore >/dev/null || missing+=(iptables) # called by criu
[ -x /lib/systemd/systemd ] || missing+=(systemd)
[ -x /sbin/apparmor_parser ] || missing+=(apparmor) # where containerd looks; the guest's kernel has AppArmor
command -v secilc >/dev/null || missing+=(secilc) # compiles guest/selinux.cil

exec "$(dirname "$0")/../../hack/packages.sh" "${missing[@]}"

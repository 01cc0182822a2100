#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks for what a build and the tests need besides Go: a C compiler (libcontainer's first stage is C), musl and the
# tools to build libseccomp for it (hack/musl.sh), the system's libseccomp (for the tests), a static busybox (the only
# program in the test image), and strace. With ARCH=arm64 on another machine, also for what a cross-build needs.
# Installs absent packages if it can.
set -euo pipefail

missing=()

# Slim images often have a compiler without libc's headers.
if ! command -v gcc >/dev/null; then
	missing+=(gcc)
fi
if ! [ -e /usr/include/stdio.h ]; then
	missing+=(libc6-dev)
fi
if ! command -v pkg-config >/dev/null; then
	missing+=(pkg-config)
fi
if ! [ -e /usr/include/seccomp.h ]; then
	missing+=(libseccomp-dev)
fi
case "$(gcc -dumpmachine 2>/dev/null)" in
*-musl*) ;; # musl is the system's libc, which has a libseccomp
*)
	for tool in musl-gcc:musl-tools gperf:gperf autoreconf:autoconf automake:automake libtoolize:libtool; do
		if ! command -v "${tool%:*}" >/dev/null; then
			missing+=("${tool#*:}")
		fi
	done
	;;
esac
# Debian's package busybox is dynamic; the container has no shared libraries.
if ! busybox=$(command -v busybox) || ldd "$busybox" >/dev/null 2>&1; then
	missing+=(busybox-static)
fi
# Tests use strace to make system calls of the shim fail.
if ! command -v strace >/dev/null; then
	missing+=(strace)
fi
if [ "${ARCH:-}" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
	if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
		missing+=(gcc-aarch64-linux-gnu)
	fi
	if ! [ -d /usr/aarch64-linux-gnu/include/linux ]; then
		missing+=(linux-libc-dev-arm64-cross)
	fi
	if ! [ -e /usr/aarch64-linux-gnu/include/stdio.h ]; then
		missing+=(libc6-dev-arm64-cross)
	fi
	if ! [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then # signs musl for arm64 (hack/debian.sh)
		missing+=(debian-archive-keyring)
	fi
fi
# CI must check the scripts in deploy, which run on other people's machines.
if [ -n "${CI:-}" ] && ! command -v shellcheck >/dev/null; then
	missing+=(shellcheck)
fi

"$(dirname "$0")/packages.sh" "${missing[@]}" || {
	echo "On Fedora: sudo dnf install gcc glibc-static musl-gcc musl-libc-static pkgconf libseccomp-devel gperf autoconf automake libtool busybox strace" >&2
	exit 1
}

#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks that a build and the tests find what they need beside Go: a C compiler (libcontainer's first stage is C), musl and
# what builds libseccomp for it (hack/musl.sh), the system's libseccomp (tests are linked with that), a static busybox (the
# only program in the test image), and strace. Installs what is absent when it can.
set -euo pipefail

missing=()

# A compiler without libc's headers is common on slim images, so the check compiles something.
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
*-musl*) ;; # the system's libc, with a libseccomp for it
*)
	for tool in musl-gcc:musl-tools gperf:gperf autoreconf:autoconf automake:automake libtoolize:libtool; do
		if ! command -v "${tool%:*}" >/dev/null; then
			missing+=("${tool#*:}")
		fi
	done
	;;
esac
# Debian's `busybox` is dynamic; a container has no shared libraries.
if ! busybox=$(command -v busybox) || ldd "$busybox" >/dev/null 2>&1; then
	missing+=(busybox-static)
fi
# Makes system calls of the shim fail in tests.
if ! command -v strace >/dev/null; then
	missing+=(strace)
fi
# The scripts in deploy run on other people's machines. In CI their check may not be left out.
if [ -n "${CI:-}" ] && ! command -v shellcheck >/dev/null; then
	missing+=(shellcheck)
fi

"$(dirname "$0")/packages.sh" "${missing[@]}" || {
	echo "On Fedora: sudo dnf install gcc glibc-static musl-gcc musl-libc-static pkgconf libseccomp-devel gperf autoconf automake libtool busybox strace" >&2
	exit 1
}

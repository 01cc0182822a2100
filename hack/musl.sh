#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs a command such as `go build` so that it links with musl and a libseccomp for musl (docs/decisions/0011-musl.md).
# Debian, Fedora and other distributions built with glibc have no such libseccomp. So this script builds it once, with
# libseccomp's own build system, into the cache. If musl is the system's libc, the system's libseccomp is used.
#
#   hack/musl.sh go build -ldflags -extldflags=-static ./cmd/containerd-shim-sandbox-v1
#
# GO sets another go command, SHIM_CACHE another cache. With SHIM_LIBC=any a machine without musl, or without what builds
# libseccomp for it, links with its own libc and libseccomp, statically if it can. SHIM_LINK tells the command how: it is
# the linker's flag. With GOARCH=arm64 on another machine it cross-builds, with Debian's compiler and Debian's musl for
# arm64, which it unpacks into the cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
GO="${GO:-go}"

need() {
	for tool; do
		if ! command -v "$tool" >/dev/null; then
			echo "$tool is absent. hack/deps.sh says what a build needs, and installs it for root." >&2
			exit 1
		fi
	done
}

# system links with the system's own libraries. A libseccomp-dev without pkg-config has the usual paths.
system() {
	export CC=gcc SHIM_LINK=-static
	command -v pkg-config >/dev/null || export PKG_CONFIG="$here/pkg-config.sh"
	links() { echo 'int main(void) { return 0; }' | gcc -x c -o /dev/null - "$@" -lseccomp 2>/dev/null; }
	if ! links -static; then
		SHIM_LINK=
		if ! links; then
			echo "gcc finds no libseccomp (libseccomp-dev, libseccomp-devel)" >&2
			exit 1
		fi
		echo "there is no static libseccomp, so the shim needs the shared libraries of this machine" >&2
	fi
	exec "$@"
}

need gcc "$GO"
machine=$(gcc -dumpmachine)
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
arch=$("$GO" env GOARCH)
if [ "$arch" = "$("$GO" env GOHOSTARCH)" ]; then
	case "$machine" in
	*-musl*) system "$@" ;;
	esac
	if [ "${SHIM_LIBC:-}" = any ]; then
		for tool in musl-gcc pkg-config autoreconf automake libtoolize gperf make; do
			if ! command -v "$tool" >/dev/null; then
				echo "$tool is absent, so the libc is the system's instead of musl, and the shim starts slower (hack/deps.sh)" >&2
				system "$@"
			fi
		done
	fi
	need musl-gcc
	cc='musl-gcc'
	musl=''
elif [ "$arch" = arm64 ]; then
	machine=aarch64-linux-gnu
	need "$machine-gcc"
	cc=
else
	echo "no cross-build for $arch, only for arm64" >&2
	exit 1
fi

need pkg-config

# go.sum must have the checksum of the download: the go command would add an absent one.
module=github.com/seccomp/libseccomp
version=$(sed -n "s|^require $module ||p" "$here/libseccomp/go.mod")
if ! grep -qF "$module $version h1:" "$here/libseccomp/go.sum"; then
	echo "hack/libseccomp/go.sum does not say what $module $version has to be" >&2
	exit 1
fi
answer=$(cd "$here/libseccomp" && GOFLAGS=-mod=mod "$GO" mod download -json "$module") || {
	echo "$answer" >&2
	exit 1
}
source=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$answer")
if ! [ -e "$source/configure.ac" ]; then
	echo "no source of libseccomp in the answer of go mod download: $answer" >&2
	exit 1
fi

cache=$(realpath -m "${SHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/containerd-shim-sandbox-v1}")
case "$cache" in
*[[:space:]]*)
	echo "cache directory \"$cache\": libseccomp's build takes no path with white space; SHIM_CACHE names another" >&2
	exit 1
	;;
esac
mkdir -p "$cache"
if [ -z "$cc" ]; then
	musl="$cache/musl-$arch"
	[ -d "$musl" ] || "$here/debian.sh" "$arch" "$musl" musl-dev
	specs=$musl/usr/lib/${machine/gnu/musl}/musl-gcc.specs
	# The paths in it are those of an installed package.
	sed -E "s#/usr/(lib|include)/#$musl&#g" "$specs" >"$specs.$$"
	mv "$specs.$$" "$musl/specs"
	cc="$machine-gcc -specs $musl/specs"
fi
prefix="$cache/libseccomp-$version-musl-${machine%%-*}-$(sha256sum "$here/libseccomp/build.sh" | head -c 8)"

if ! [ -d "$prefix" ]; then
	need autoreconf automake libtoolize gperf make
	echo "building libseccomp for musl (once; it stays in the cache)" >&2
	temp=$(mktemp -d "$cache/libseccomp.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	# Without the caller's environment, which may have DESTDIR, CFLAGS or MAKEFLAGS.
	if ! env -i PATH="$PATH" HOME="$HOME" LC_ALL=C "$here/libseccomp/build.sh" "$source" "$temp" "$prefix" "$machine" "$cc" \
		>"$temp/log" 2>&1; then
		tail -n 30 "$temp/log" >&2
		exit 1
	fi
	# Another build may have finished first, with the same result.
	mv -T "$temp/to" "$prefix" 2>/dev/null || [ -d "$prefix" ]
	rm -rf "$temp"
	trap - EXIT
fi

# For hack/release: what is linked, and where its licences are.
export SHIM_MUSL_DOC=$musl/usr/share/doc/musl-dev SHIM_LIBSECCOMP=$source SHIM_LIBSECCOMP_VERSION=$version
export CC="$cc" CGO_ENABLED=1 SHIM_LINK=-static PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig" CGO_CFLAGS="-O2 -idirafter $prefix/include"
exec "$@"

#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs a command, `go build`, with what a static program of Go and C is linked with: musl, and libseccomp for it
# (docs/decisions/0011-musl.md). No distribution but Alpine has that libseccomp, so it is built here, once, by its own
# build system, into the cache.
#
#   hack/musl.sh go build -ldflags -extldflags=-static ./cmd/containerd-shim-sandbox-v1
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

native=$(gcc -dumpmachine)
case "$native" in
*-musl) CC=gcc ;;
*) CC=musl-gcc ;;
esac
for tool in "$CC" autoreconf automake libtoolize gperf make; do
	if ! command -v "$tool" >/dev/null; then
		echo "$tool is absent. hack/deps.sh says what a build needs, and installs it for root." >&2
		exit 1
	fi
done

# go.sum beside go.mod says what is downloaded.
source=$(cd "$here/libseccomp" && GOFLAGS=-mod=mod go mod download -json github.com/seccomp/libseccomp | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
cache="${SHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/containerd-shim-sandbox-v1}"
prefix="$cache/$(basename "$source" | tr @ -)-musl-${native%%-*}-$(sha256sum "$here/musl.sh" | head -c 8)"

# build compiles the copy of the source in $1 into $prefix. Files of Go's module cache cannot be executed, nor written.
build() {
	cp -r --no-preserve=mode "$source/." "$1/source"
	mkdir -p "$1/to/include"
	# musl-gcc sees none of the system's headers. The kernel's are the same for every libc.
	if [ "$CC" = musl-gcc ]; then
		for headers in linux asm-generic "$(gcc -print-multiarch)/asm" asm; do
			if [ -d "/usr/include/$headers" ]; then
				ln -sfn "/usr/include/$headers" "$1/to/include/$(basename "$headers")"
			fi
		done
	fi
	cd "$1/source"
	chmod u+x src/arch-gperf-generate
	autoreconf --force --install
	sh ./configure --quiet CC="$CC -idirafter $1/to/include" --disable-shared --prefix="$prefix"
	make -C include install prefix="$1/to"
	make -C src -j "$(nproc)"
	make -C src install-libLTLIBRARIES prefix="$1/to"
	make install-pkgconfDATA prefix="$1/to"
}

if ! [ -d "$prefix" ]; then
	echo "building libseccomp for musl (once; it stays in the cache)" >&2
	mkdir -p "$cache"
	temp=$(mktemp -d "$cache/libseccomp.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	build "$temp" >"$temp/log" 2>&1 & # what is tested by `if` itself would go on after an error
	if ! wait $!; then
		tail -n 30 "$temp/log" >&2
		exit 1
	fi
	# Another build may have been quicker, and is the same.
	mv -T "$temp/to" "$prefix" 2>/dev/null || [ -d "$prefix" ]
	rm -rf "$temp"
	trap - EXIT
fi

export CC PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig" CGO_CFLAGS="-O2 -idirafter $prefix/include"
exec "$@"

#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# build.sh SOURCE TEMP PREFIX MACHINE CC: builds libseccomp for musl into TEMP/to, to be moved to PREFIX (hack/musl.sh).
set -euo pipefail
source=$1 temp=$2 prefix=$3 machine=$4 cc=$5

# Files of Go's module cache can be neither executed nor written.
cp -r --no-preserve=mode "$source/." "$temp/source"
cd "$temp/source"
chmod u+x src/arch-gperf-generate

# musl-gcc sees none of the system's headers. The kernel's are the same for every libc.
mkdir -p "$temp/to/include"
for headers in /usr/include/{linux,asm-generic,"$machine/asm",asm} "/usr/$machine/include"/{linux,asm-generic,asm}; do
	if [ -d "$headers" ]; then
		ln -sfn "$headers" "$temp/to/include/$(basename "$headers")"
	fi
done

autoreconf --force --install
sh ./configure --quiet --host="$machine" CC="$cc -idirafter $temp/to/include" --disable-shared --prefix="$prefix"
make -C include install prefix="$temp/to"
make -C src -j "$(nproc)"
make -C src install-libLTLIBRARIES prefix="$temp/to"
make install-pkgconfDATA prefix="$temp/to"
test -s "$temp/to/lib/libseccomp.a"
test -s "$temp/to/lib/pkgconfig/libseccomp.pc"

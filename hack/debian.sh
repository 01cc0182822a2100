#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# debian.sh [-d] [-s SUITE] ARCH DIR PACKAGE... unpacks packages of Debian 12, or of another suite, into DIR, with -d
# also all that they depend on. Nothing is installed, and this machine's own apt and dpkg know nothing of it.
set -euo pipefail

what=download
if [ "$1" = -d ]; then
	what="install -y --no-install-recommends --download-only"
	shift
fi
suite=bookworm
if [ "$1" = -s ]; then
	suite=$2
	shift 2
fi
arch=$1 dir=$2
shift 2

temp=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$temp"' EXIT
chmod 755 "$temp"
mkdir -p "$temp"/{lists,archives,preferences,root}
touch "$temp/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
sources=("debian $suite")
[ "$suite" = sid ] || sources+=("debian-security $suite-security")
for source in "${sources[@]}"; do
	echo "deb [signed-by=$keyring] http://deb.debian.org/$source main" >>"$temp/sources"
done
cat >"$temp/conf" <<END
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "$temp";
Dir::State::lists "$temp/lists";
Dir::State::status "$temp/status";
Dir::Cache "$temp";
Dir::Cache::archives "$temp/archives";
Dir::Etc::sourcelist "$temp/sources";
Dir::Etc::sourceparts "-";
Dir::Etc::preferencesparts "$temp/preferences";
Debug::NoLocking "true";
END
export APT_CONFIG="$temp/conf"
cd "$temp/archives"
apt-get -qq update
# shellcheck disable=SC2086 # words
apt-get -qq $what "$@" >&2
# Where a suite has links in place of /bin and /lib, base-files has them: they come first.
shopt -s nullglob
for package in base-files_*.deb *.deb; do
	dpkg-deb -x "$package" "$temp/root"
done
# Another process may have been faster, with the same result.
mv -T "$temp/root" "$dir" 2>/dev/null || [ -d "$dir" ]

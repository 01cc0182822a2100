#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Installs the given Debian packages if it can. Otherwise it prints how to install them.
set -euo pipefail

if [ $# -eq 0 ]; then
	exit 0
fi

install="apt-get update && apt-get install -y --no-install-recommends $*"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "These packages are absent: $*" >&2
	echo "On Debian and Ubuntu: sudo sh -c '$install'" >&2
	exit 1
fi
echo "Installing: $*"
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "$@"

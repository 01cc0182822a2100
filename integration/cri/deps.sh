#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks for the programs that pods' networks need, beside what hack/deps.sh knows. Installs them when it can.
set -euo pipefail

missing=()
[ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || missing+=(containernetworking-plugins)
PATH=$PATH:/usr/sbin:/sbin
command -v iptables >/dev/null || missing+=(iptables) # called by the plugin portmap

if [ ${#missing[@]} -eq 0 ]; then
	exit 0
fi

install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "These packages are absent: ${missing[*]}" >&2
	echo "On Debian and Ubuntu: sudo sh -c '$install'" >&2
	exit 1
fi
echo "Installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "${missing[@]}"

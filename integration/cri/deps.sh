#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks for the programs that pods' networks need, beside what hack/deps.sh knows. Installs them when it can.
set -euo pipefail

missing=()
[ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || missing+=(containernetworking-plugins)
PATH=$PATH:/usr/sbin:/sbin
command -v iptables >/dev/null || missing+=(iptables) # called by the plugin portmap

exec "$(dirname "$0")/../../hack/packages.sh" "${missing[@]}"

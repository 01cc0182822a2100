#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks for the programs that containerd's client tests call, beside what hack/deps.sh knows. Installs them when it can.
set -euo pipefail

missing=()
command -v lsof >/dev/null || missing+=(lsof)         # counts a shim's pipes
command -v ps >/dev/null || missing+=(procps)         # run by a hook
command -v mkfs.xfs >/dev/null || missing+=(xfsprogs) # mounted at runtime

exec "$(dirname "$0")/../../hack/packages.sh" "${missing[@]}"

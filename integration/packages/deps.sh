#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Checks for what makes a root of Debian (root.sh). Installs it when it can.
set -euo pipefail

missing=()
PATH=$PATH:/usr/sbin:/sbin
command -v debootstrap >/dev/null || missing+=(debootstrap)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static) # runs what is packed for arm64
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)

exec "$(dirname "$0")/../../hack/packages.sh" "${missing[@]}"

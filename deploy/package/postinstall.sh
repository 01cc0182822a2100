#!/bin/sh
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs after the package is installed, and tells what it leaves to the person who installed it. Arguments are those of the
# format: deb has "configure" and the former version, if there was one, rpm how many versions are installed, apk the version.
set -eu

case "${1:-} ${2:-}" in
'configure ') ;;
configure* | abort-* | '2 ' | '3 ') exit 0 ;; # an upgrade, or a removal that did not happen
esac
cat <<'END'
containerd-shim-sandbox-v1: containerd finds the runtime io.containerd.sandbox.v1 from now on, without a restart. ctr and
nerdctl need no settings, Docker one (README.md). This gives containerd the handlers of Kubernetes, and restarts it:

    /usr/share/containerd-shim-sandbox-v1/install.sh install --config-only

END

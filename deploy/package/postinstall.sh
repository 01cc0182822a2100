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
containerd-shim-sandbox-v1: containerd finds the runtime io.containerd.sandbox.v1 from now on; it needs neither a restart
nor settings for ctr, nerdctl and Docker. This gives it the handlers of Kubernetes, and restarts it:

    /usr/share/containerd-shim-sandbox-v1/install.sh install --config-only

END

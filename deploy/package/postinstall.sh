#!/bin/sh
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs after the package is installed, and tells what it leaves to the person who installed it. Arguments are those of the
# format: deb has "configure" and the former version, if there was one, rpm how many versions are installed, apk the version
# and, after an upgrade, the former one.
set -eu

case "${1:-} ${2:-}" in
'configure ') ;;
abort-*) exit 0 ;; # a removal that did not happen
configure* | '2 ' | '3 ' | *.*' '*.*) # an upgrade; whoever did it chooses when shims change
	cat <<-'END'
		containerd-shim-sandbox-v1: shims that run keep their former program. This gives them the new one, under their
		containers:

		    sandboxctl upgrade --all

	END
	exit 0
	;;
esac
cat <<'END'
containerd-shim-sandbox-v1: containerd finds the runtime io.containerd.sandbox.v1 from now on, without a restart. ctr and
nerdctl need no settings, Docker one (README.md). This gives containerd the handlers of Kubernetes, and restarts it:

    /usr/share/containerd-shim-sandbox-v1/install.sh install --config-only

END

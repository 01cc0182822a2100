#!/bin/sh
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# The pods of daemonset.yaml and uninstall.yaml run this on each node. It runs install.sh in the node's mount namespace,
# with the node's tools, and sets the node's labels. The pod needs hostPID, privileges, and the node's directory
# HOST_DIR at the same path; NODE_NAME is the node. Further arguments, and UPGRADE_SHIMS, are for install.sh.
#
#   pod.sh install [option...]     then labels the node, so that pods of the RuntimeClasses can run there. Another value
#                                  of the label says until then that the uninstaller has something to do there.
#   pod.sh uninstall [option...]   changes the label, waits until no container is left, and removes the rest
set -eu
trap 'exit 143' TERM # pid 1 would ignore it

name='containerd-shim-sandbox-v1'
installed=io.containerd.sandbox.v1/installed
pauseless=io.containerd.sandbox.v1/pauseless
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
: "${NODE_NAME:?the name of this node}" "${HOST_DIR:?a directory of the node, mounted at the same path}"

action=${1:-}
case $action in
install | uninstall) shift ;;
*)
	echo "usage: pod.sh install|uninstall [option of install.sh...]" >&2
	exit 2
	;;
esac

# A containerd that --restart starts must have the node's network and host name. busybox has short options only.
on_node() { nsenter -t "${HOST_PID:-1}" -m -u -i -n -- "$@"; }

label() { kubectl label node "$NODE_NAME" --overwrite "$@"; }

if [ "$action" = install ]; then
	now=$(kubectl get node "$NODE_NAME" --output 'jsonpath={.metadata.labels.io\.containerd\.sandbox\.v1/installed}')
	[ "$now" = true ] || label "$installed=installing"
fi

# The node runs these from its own file system, not from the image.
mkdir -p "$HOST_DIR"
for file in install.sh install-config.sh install-containerd.sh containerd-1.toml containerd-2.toml "$name" sandboxctl; do
	[ "$file" != sandboxctl ] || [ -e "$here/$file" ] || continue # an image without it installs as well
	cp "$here/$file" "$HOST_DIR/$file.part"
	mv -f "$HOST_DIR/$file.part" "$HOST_DIR/$file"
done
chmod 0755 "$HOST_DIR/install.sh" "$HOST_DIR/$name"

# attempt runs install.sh and writes its output to $HOST_DIR/log. If containerd rejected its new configuration, it was
# restarted twice. If this pod ended, it would be started again, and restart containerd again. So it waits.
attempt() {
	status=0
	on_node "$HOST_DIR/install.sh" "$@" >"$HOST_DIR/log" 2>&1 || status=$?
	cat "$HOST_DIR/log"
	case $status in
	3 | 4) ;;
	*) return $status ;;
	esac
	echo "pod.sh: containerd is not asked again: delete this pod to try once more"
	while :; do
		sleep 86400 &
		wait $!
	done
}

case $action in
install)
	attempt install "$@"
	case " $(sed -n 's/^handlers: //p' "$HOST_DIR/log") " in
	*" sandbox-pauseless "*) label "$installed=true" "$pauseless=true" ;;
	*" sandbox "*) label "$installed=true" "$pauseless-" ;;
	*)
		echo "pod.sh: no handler has the name of a RuntimeClass" >&2
		exit 1
		;;
	esac
	;;
uninstall)
	label "$installed=leaving" "$pauseless-" # no new pod of the RuntimeClasses
	until attempt uninstall "$@"; do
		echo "pod.sh: trying again in ${RETRY_SECONDS:-30} s"
		sleep "${RETRY_SECONDS:-30}" &
		wait $! # a signal interrupts this, but not install.sh
	done
	rm -rf "${HOST_DIR:?}"/*
	on_node rmdir "$HOST_DIR" || : # in the pod it is a mount
	label "$installed-" # the DaemonSet then removes this pod
	;;
esac

#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Answers the go command in place of pkg-config, where that is absent (hack/musl.sh): libseccomp is where compilers look.
set -euo pipefail

case " $* " in
*" --cflags "*) echo ;;
*" --libs "*) echo -lseccomp ;;
*)
	echo "pkg-config.sh $*: want --cflags or --libs" >&2
	exit 1
	;;
esac

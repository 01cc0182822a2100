// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/extension/hostrootfs"
	"sandbox.internal/shim/pkg/extension/initproc"
	"sandbox.internal/shim/pkg/extension/listen"
	"sandbox.internal/shim/pkg/extension/notify"
	"sandbox.internal/shim/pkg/extension/pidfile"
	"sandbox.internal/shim/pkg/extension/sleep"
)

// extensions returns the extensions of this program. Sockets are bound after the check of the host's directories, in
// which they may be, and watched by idle. The pid file is made last.
func extensions() extension.List {
	return extension.List{
		initproc.Extension(),
		hostrootfs.Extension(),
		notify.Extension(),
		sleep.Extension(),
		listen.Extension(),
		pidfile.Extension(),
	}
}

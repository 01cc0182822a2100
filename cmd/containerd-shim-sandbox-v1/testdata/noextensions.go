// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import "sandbox.internal/shim/pkg/extension"

// extensions takes the place of the list in a program without any (go build -overlay).
func extensions() extension.List { return nil }

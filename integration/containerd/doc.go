// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package containerd has the tests that run real containers through a real, private containerd: one for each call, each
// event and each race. One containerd serves the package; each test has a namespace of its own and is checked for
// leaks when it ends. There is nothing to import here.
package containerd

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package packages tests what a release consists of: that it is made the same twice, and its packages where their users
// are. A guest is a clean Debian with containerd, in namespaces of mounts and processes of its own, on a layer that
// goes with it. There packages are installed, used by Debian's containerd, upgraded under running containers, removed.
//
// Without SHIM_TEST_PACKAGES a part is tested: the .deb of the built binary, on Debian 12. With it, which `make
// test-packages` sets, all is.
package packages

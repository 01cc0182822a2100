// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package clients tests what people type. A dockerd and a docker, BuildKit, crictl, ctr and nerdctl, each with a
// containerd, directories, namespaces and a network of their own, run tables of cases with the runc shim and with this
// one. What the two show is compared: exit status, output, and what docker inspect and nerdctl inspect say of the
// containers. After each case nothing may be left of it.
//
// Most cases are shell scripts, with their output. In them:
//   - docker is docker, with --runtime for run and create, and busybox is the test image; the files of BuildKit,
//     crictl, ctr and nerdctl have what scripts of these call;
//   - await WANT COMMAND… runs the command until its output is WANT, and processes CONTAINER lists arguments;
//   - rest N sleeps N seconds, on a slow machine so many times longer;
//   - $W is a directory of the case's own.
//
// `make test-clients` sets SHIM_TEST_CLIENTS, without which nothing is tested: dockerd takes minutes to build. With
// WRITE=1 it writes the tables of docs/compatibility.md (package table). SHIM_TEST_CLIENTS=debian has Debian's dockerd
// in place of the one that is built; `make smoke-clients` runs some cases so.
package clients

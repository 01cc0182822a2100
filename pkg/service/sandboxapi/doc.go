// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package sandboxapi holds the messages of containerd's Sandbox service without
// the gRPC that containerd's own package for them links. `make generate` makes
// it from sandbox.proto; a test of pkg/service compares the two packages.
package sandboxapi

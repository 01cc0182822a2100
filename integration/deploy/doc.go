// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the directory deploy: install.sh on private containerds of each series, through the ways in
// which it can fail, and the manifests against Kubernetes' types.
//
// A node of a test owns its containerd and the goroutine that restarts it when install.sh asks for that; the end of the
// test joins both.
package deploy

// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package service is the wire: it decodes a request, makes one call, and
// encodes the answer. It has no state and no locks.
//
// The task service is registered under the names of its versions 2 and 3, whose
// messages are the same on the wire (containerd api/runtime/task). Errors have
// their errdefs class from where they arose, and become a status in one place
// (interceptor.go).
package service

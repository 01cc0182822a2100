// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package api has the messages that containerd and a shim exchange, as plain structs with the tags that pkg/wire reads. They are those of
// containerd's protocol files (github.com/containerd/containerd/api), with the same fields, numbers and types, which the tests compare; the
// two that are called Options there are RuncOptions and RuntimeOptions. Left out are fields that a shim has no use for. The messages of
// streaming are in pkg/service, and CRI's in pkg/pod/podconfig; google.protobuf.Any and Timestamp are the library's.
//
// containerd's packages would do, if linking them cost nothing: they make protobuf ready for all of their messages whenever the program
// begins, that is in each shim and in each container's first stage (docs/decisions/0012-own-structs-for-messages.md).
package api

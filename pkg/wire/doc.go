// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes messages of protobuf by the struct tags that protoc-gen-go writes (`protobuf:"bytes,1,opt,name=id,proto3"`):
// structs of our own with such tags (pkg/api), and those that it generated.
//
// It does what google.golang.org/protobuf does, without making that library ready for each type of message, which takes 0.3 MB and 0.4 ms
// of each shim (docs/decisions/0010-messages-by-struct-tags.md). The rules are those of
// https://protobuf.dev/programming-guides/encoding: fields in any order, of a scalar the last value counts, a message that comes twice is
// merged, numbers come packed or not. Fields that the struct does not have are dropped.
//
// It knows what proto3 and the messages of containerd have: numbers without zigzag or fixed 32 bits, texts, bytes, messages, lists,
// optional fields, and maps from text to text or to messages. A message with anything else, or that contains itself, is an error.
//
// The tables of the types are guarded by a lock. It is held while a type is looked at for the first time, and while the table of a message is
// looked up.
package wire

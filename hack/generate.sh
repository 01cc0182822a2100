#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Makes the Go code of every .proto file below pkg. It is checked in, so that a build needs no protoc.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v protoc >/dev/null; then
	echo "protoc is absent. On Debian and Ubuntu: sudo apt-get install protobuf-compiler" >&2
	exit 1
fi

module=$(go list -m)
api=$(go list -m -f '{{.Dir}}' github.com/containerd/containerd/api) # its messages are imported
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
# The version that go.mod has, so that code and library are of one release.
go build -o "$bin/protoc-gen-go" google.golang.org/protobuf/cmd/protoc-gen-go

find pkg -name '*.proto' -print0 | sort -z | while IFS= read -r -d '' file; do
	PATH="$bin:$PATH" protoc -I . -I "$api" --go_out=. --go_opt=module="$module" "$file"
done

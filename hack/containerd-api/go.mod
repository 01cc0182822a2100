// The stand-in that `make build` puts in the place of containerd's module (docs/decisions/0012-own-structs-for-messages.md).
module github.com/containerd/containerd/api

go 1.26

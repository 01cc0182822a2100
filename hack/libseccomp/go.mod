// The source of libseccomp, which build.sh builds: the Go module proxy serves it, and go.sum says what it has to be. No Go file
// imports it, so `go mod tidy` would drop it. For another version: go get github.com/seccomp/libseccomp@VERSION
module sandbox.internal/libseccomp

go 1.26

require github.com/seccomp/libseccomp v2.6.0+incompatible

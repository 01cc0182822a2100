// The source of libseccomp, which hack/musl.sh builds: the Go module proxy serves it, and go.sum says what it has to be.
module sandbox.internal/libseccomp

go 1.26

require github.com/seccomp/libseccomp v2.6.0+incompatible

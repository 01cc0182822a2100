module sandbox.internal/shim/cmd/sandboxctl

go 1.26.6

require (
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.48.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
)

// The program is built with the shim whose services it calls.
replace sandbox.internal/shim => ../..

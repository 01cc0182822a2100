// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// version and revision are set by the linker (-X main.version=... -X main.revision=...). They stay empty in a plain
// `go build` or `go install`, where the build information answers instead.
var (
	version  string
	revision string
)

// libcontainerModule is where the version of the linked container runtime is read from.
const libcontainerModule = "github.com/opencontainers/runc"

// seccompAnnotation is the key under which an OCI runtime's features name the libseccomp it runs with
// (runc's `features` command sets it); absent means seccomp is not compiled in.
const seccompAnnotation = "io.github.seccomp.libseccomp.version"

// build says what this binary is made of.
type build struct {
	version, revision, libcontainer string
}

// buildOf reads the linker's values first and the build information for what they leave open.
func buildOf() build {
	b := build{version: version, revision: revision, libcontainer: "unknown"}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.version == "" {
		b.version = bi.Main.Version
	}
	for _, s := range bi.Settings {
		if s.Key == "vcs.revision" && b.revision == "" {
			b.revision = s.Value
		}
	}
	for _, d := range bi.Deps {
		if d.Path == libcontainerModule {
			b.libcontainer = d.Version
		}
	}
	return b
}

// versionText is the answer to -v, in the form of containerd's own shims (pkg/shim/shim.go), with two lines of ours.
func versionText(f *features.Features) string {
	b := buildOf()
	seccomp := "off"
	if f != nil && f.Annotations[seccompAnnotation] != "" {
		seccomp = f.Annotations[seccompAnnotation]
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s:\n", binaryName)
	fmt.Fprintf(&s, "  Version:  %s\n", b.version)
	fmt.Fprintf(&s, "  Revision: %s\n", b.revision)
	fmt.Fprintf(&s, "  Go version: %s\n", runtime.Version())
	fmt.Fprintf(&s, "  libcontainer: %s\n", b.libcontainer)
	fmt.Fprintf(&s, "  seccomp: %s\n\n", seccomp)
	return s.String()
}

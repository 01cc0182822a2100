// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"strings"
)

// dialect is the form of answer that a generation of containerd reads.
//
// The evidence, from the modules' sources:
//
//	containerd  stdin           MAX_SHIM_VERSION  reads                          highest version
//	1.6.38      Any or nothing  absent            plain address only             -
//	1.7.0-35    Any or nothing  "2"               JSON, else plain               2 (3 is refused)
//	2.0-2.2     Any or nothing  "2"               JSON, else plain               3
//	2.3-        BootstrapParams "2"               protobuf, else JSON or plain   3
//
// 1.6 passes the whole text to the dialler (runtime/v2/binary.go), so JSON would be taken for a socket path. 1.7 and
// 2.0 send the same arguments, environment and stdin (their Command functions differ in import paths only), so what
// tells them apart is the caller itself: the module path in the build information of the parent's executable. Where
// that says nothing (stripped build information, a product that embeds containerd) version 2 is right for all.
type dialect int

const (
	dialectPlain dialect = iota // 1.6
	dialectJSON2                // 1.7, and 2.0-2.2 that cannot be recognised
	dialectJSON3                // 2.0-2.2
	dialectProto                // 2.3 and later
)

// containerd2 is the module path of containerd 2.x. 1.x has the same without the suffix.
const containerd2 = "github.com/containerd/containerd/v2"

// legacyDialect finds the dialect of a containerd before 2.3. lookup is os.LookupEnv; caller reads the build
// information of the program that started us.
func legacyDialect(lookup func(string) (string, bool), caller func() (*debug.BuildInfo, error)) dialect {
	if _, ok := lookup("MAX_SHIM_VERSION"); !ok {
		return dialectPlain
	}
	bi, err := caller()
	if err != nil {
		return dialectJSON2 // hidepid, no Go program, the caller is gone: what all of them read
	}
	if bi.Main.Path == containerd2 || strings.HasPrefix(bi.Path, containerd2+"/") {
		return dialectJSON3
	}
	return dialectJSON2
}

// callerBuild reads the build information of the caller's running image. The path in -publish-binary would not do:
// after an upgrade it may hold the next generation while the old one still runs.
func callerBuild() (*debug.BuildInfo, error) {
	return buildinfo.ReadFile(fmt.Sprintf("/proc/%d/exe", caller()))
}

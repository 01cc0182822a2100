// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	bootstrapapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/options"
)

// request is what containerd asks of start, whichever generation asked.
type request struct {
	Args
	version      protocolVersion
	ttrpcAddress string
	socketDir    string       // "" means the default
	options      []*anypb.Any // task or runtime options; at most one before 2.3
}

// maxInput bounds stdin. containerd's own shims use the same bound (pkg/shim/shim.go).
const maxInput = 10 << 20

// ReadInput reads stdin to its end. A terminal counts as empty: a person who tries the command by hand should get an
// answer, not a prompt that waits for ever.
func ReadInput(stdin *os.File) ([]byte, error) {
	if _, err := unix.IoctlGetTermios(int(stdin.Fd()), unix.TCGETS); err == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read stdin: %w", err)
	}
	if len(data) > maxInput {
		return nil, fmt.Errorf("read stdin: more than %d bytes: %w", maxInput, errdefs.ErrInvalidArgument)
	}
	return data, nil
}

// parseRequest decodes stdin of start. The bytes do not say what they are: containerd 2.3 and later send
// BootstrapParams, all before it send an Any of options or nothing, and each message decodes as the other since both
// begin with two length-delimited fields. Identity decides: only BootstrapParams repeat -id and -namespace.
// legacy finds the version when the input is not BootstrapParams.
func parseRequest(input []byte, a Args, legacy func() protocolVersion) (request, error) {
	r := request{Args: a, ttrpcAddress: os.Getenv("TTRPC_ADDRESS")}
	if len(input) == 0 {
		r.version = legacy()
		return r, nil
	}
	var p bootstrapapi.BootstrapParams
	err := proto.Unmarshal(input, &p)
	if err == nil && p.InstanceID == a.ID && p.Namespace == a.Namespace {
		return r.fill(&p), nil
	}
	// Fields above 2 do not exist in an Any, so these are BootstrapParams for somebody else.
	if err == nil && (p.ContainerdVersion != "" || p.ContainerdGrpcAddress != "") {
		return r, fmt.Errorf(
			"bootstrap parameters on stdin are for id %q in namespace %q, arguments for id %q in namespace %q: %w",
			p.InstanceID, p.Namespace, a.ID, a.Namespace, errdefs.ErrInvalidArgument)
	}
	var opts anypb.Any
	if err := proto.Unmarshal(input, &opts); err != nil {
		return r, fmt.Errorf("decode stdin, %d bytes, as bootstrap parameters or options: %w: %w",
			len(input), err, errdefs.ErrInvalidArgument)
	}
	r.version = legacy()
	r.options = []*anypb.Any{&opts}
	return r, nil
}

// fill takes over what BootstrapParams say; what they leave empty keeps the value from flags and environment.
func (r request) fill(p *bootstrapapi.BootstrapParams) request {
	r.version = protobufVersion3
	// Levels are ordered and open: what is below DEBUG (TRACE and unknown ones) is at least as verbose.
	r.Debug = r.Debug || p.LogLevel <= bootstrapapi.LogLevel_LOG_LEVEL_DEBUG
	r.Address = cmp.Or(p.ContainerdGrpcAddress, r.Address)
	r.ttrpcAddress = cmp.Or(p.ContainerdTtrpcAddress, r.ttrpcAddress)
	r.socketDir = p.GetSocketDir()
	for _, e := range p.Extensions {
		if e.Value != nil {
			r.options = append(r.options, e.Value)
		}
	}
	return r
}

// encodeAnswer encodes the answer to start. Version 3 of the protocol also tells containerd 2.x that the shim groups a
// pod's containers and serves streams. No form ends in a newline: 0x0a would be read as a field of the protobuf
// form.
func encodeAnswer(v protocolVersion, address string) ([]byte, error) {
	result := &bootstrapapi.BootstrapResult{Version: 3, Address: address, Protocol: "ttrpc"}
	switch v {
	case plainAddress:
		return []byte(address), nil
	case protobufVersion3:
		return proto.Marshal(result)
	case jsonVersion2:
		result.Version = 2
	case jsonVersion3:
	}
	return json.Marshal(result)
}

// parseOptions reads the runtime options among what containerd sends at start. Messages of other types are left
// alone: containerd 2.3 sends extensions that are not options.
func parseOptions(list []*anypb.Any) (options.Options, error) {
	for _, a := range list {
		if options.Known(a.GetTypeUrl()) {
			return options.Decode(a)
		}
	}
	return options.Options{}, nil
}

// protocolVersion is the form of answer that a generation of containerd reads.
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
type protocolVersion int

const (
	plainAddress     protocolVersion = iota // 1.6
	jsonVersion2                            // 1.7, and 2.0-2.2 that cannot be recognised
	jsonVersion3                            // 2.0-2.2
	protobufVersion3                        // 2.3 and later
)

// containerd2 is the module path of containerd 2.x. 1.x has the same without the suffix.
const containerd2 = "github.com/containerd/containerd/v2"

// legacyVersion finds the version of a containerd before 2.3. lookup is os.LookupEnv; caller reads the build
// information of the program that started us.
func legacyVersion(lookup func(string) (string, bool), caller func() (*debug.BuildInfo, error)) protocolVersion {
	if _, ok := lookup("MAX_SHIM_VERSION"); !ok {
		return plainAddress
	}
	bi, err := caller()
	if err != nil {
		return jsonVersion2 // hidepid, no Go program, the caller is gone: what all of them read
	}
	if bi.Main.Path == containerd2 || strings.HasPrefix(bi.Path, containerd2+"/") {
		return jsonVersion3
	}
	return jsonVersion2
}

// callerBuild reads the build information of the caller's running image. The path in -publish-binary would not do:
// after an upgrade it may hold the next generation while the old one still runs.
func callerBuild() (*debug.BuildInfo, error) {
	return buildinfo.ReadFile(fmt.Sprintf("/proc/%d/exe", caller()))
}

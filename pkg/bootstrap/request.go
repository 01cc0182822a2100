// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	bootstrapapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// protocol is what our socket speaks, in every answer.
const protocol = "ttrpc"

// Versions of an answer. 3 also tells containerd 2.x that the shim groups a pod's containers and serves streams.
const (
	versionTask2 = 2
	versionTask3 = 3
)

// request is what containerd asks of start, whichever generation asked.
type request struct {
	dialect      dialect
	debug        bool
	grpcAddress  string
	ttrpcAddress string
	socketDir    string       // "" means the default
	options      []*anypb.Any // task or runtime options; at most one before 2.3
}

// maxInput bounds stdin. containerd's own shims use the same bound (pkg/shim/shim.go).
const maxInput = 10 << 20

// ReadInput reads stdin to its end. A terminal counts as empty: a person who tries the command by hand should get an
// answer, not a prompt that waits for ever.
func ReadInput(stdin *os.File) ([]byte, error) {
	if stdin == nil {
		return nil, nil
	}
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
// legacy is asked for the dialect when the input is not BootstrapParams.
func parseRequest(input []byte, a Args, legacy func() dialect) (request, error) {
	r := request{debug: a.Debug, grpcAddress: a.Address, ttrpcAddress: os.Getenv("TTRPC_ADDRESS")}
	if len(input) == 0 {
		r.dialect = legacy()
		return r, nil
	}
	var p bootstrapapi.BootstrapParams
	err := proto.Unmarshal(input, &p)
	if err == nil && p.InstanceID == a.ID && p.Namespace == a.Namespace {
		return r.fill(&p), nil
	}
	// Fields above 2 do not exist in an Any, so these are BootstrapParams for somebody else.
	if err == nil && (p.ContainerdVersion != "" || p.ContainerdGrpcAddress != "") {
		return r, fmt.Errorf("bootstrap parameters on stdin are for id %q in namespace %q, arguments for id %q in namespace %q: %w",
			p.InstanceID, p.Namespace, a.ID, a.Namespace, errdefs.ErrInvalidArgument)
	}
	var opts anypb.Any
	if err := proto.Unmarshal(input, &opts); err != nil {
		return r, fmt.Errorf("decode stdin, %d bytes, as bootstrap parameters or options: %w: %w", len(input), err, errdefs.ErrInvalidArgument)
	}
	r.dialect = legacy()
	r.options = []*anypb.Any{&opts}
	return r, nil
}

// fill takes over what BootstrapParams say; what they leave empty keeps the value from flags and environment.
func (r request) fill(p *bootstrapapi.BootstrapParams) request {
	r.dialect = dialectProto
	// Levels are ordered and open: what is below DEBUG (TRACE and unknown ones) is at least as verbose.
	r.debug = r.debug || p.LogLevel <= bootstrapapi.LogLevel_LOG_LEVEL_DEBUG
	if a := p.ContainerdGrpcAddress; a != "" {
		r.grpcAddress = a
	}
	if a := p.ContainerdTtrpcAddress; a != "" {
		r.ttrpcAddress = a
	}
	if p.SocketDir != nil {
		r.socketDir = *p.SocketDir
	}
	for _, e := range p.Extensions {
		if e.Value != nil {
			r.options = append(r.options, e.Value)
		}
	}
	return r
}

// answer is the JSON form, with the field order of containerd's own shims.
type answer struct {
	Version  int    `json:"version"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
}

// encodeAnswer renders the answer to start in dialect d. No form ends in a newline: 0x0a would be read as a field of
// the protobuf form.
func encodeAnswer(d dialect, address string) ([]byte, error) {
	switch d {
	case dialectPlain:
		return []byte(address), nil
	case dialectJSON2:
		return json.Marshal(answer{Version: versionTask2, Address: address, Protocol: protocol})
	case dialectJSON3:
		return json.Marshal(answer{Version: versionTask3, Address: address, Protocol: protocol})
	case dialectProto:
		return proto.Marshal(&bootstrapapi.BootstrapResult{Version: versionTask3, Address: address, Protocol: protocol})
	}
	return nil, fmt.Errorf("encode answer in dialect %d: %w", d, errdefs.ErrInvalidArgument)
}

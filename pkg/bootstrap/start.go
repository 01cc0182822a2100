// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package bootstrap runs containerd's `start`: it reads the request, finds or makes the socket of the container's
// group, becomes a daemon, and answers. The daemon has one goroutine for signals, which [Start] ends and joins. The
// flock of the socket directory is never held during a fork or an RPC.
//
// Promises: start writes its answer to stdout and nothing else anywhere, since containerd reads stdout and stderr as
// one stream. A start that fails leaves neither daemon nor socket, and a daemon that fails leaves no socket. Two
// concurrent starts give one daemon.
package bootstrap

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	bootstrapapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/osthread"
)

// startTimeout bounds start after the end of its input. containerd sets no bound.
const startTimeout = 10 * time.Second

// Start answers `start`: it writes the socket's address of the group's daemon to stdout, becomes that daemon if there
// is none, and then returns when the daemon ends. It is called on the main goroutine, in a process that detach.c split
// off.
func Start(a Args, stdin *os.File, serve ServeFunc) error {
	d, l, err := begin(a, stdin)
	if err != nil {
		return fmt.Errorf("start %q: %w", a.ID, err)
	}
	if l == nil {
		return nil // containerd has the address of another daemon
	}
	return osthread.Main(func(t *osthread.Thread) error {
		d.Thread, d.Umask = t, unix.Umask(umask)
		return runServe(d, l, initial(serve))
	})
}

// begin performs `start` up to the answer to containerd. The listener is nil if another daemon's address is the
// answer. It starts no goroutine: the runtime would start a second thread, for which containerd would wait.
func begin(a Args, stdin *os.File) (Daemon, *listener, error) {
	if err := checkDetached(); err != nil {
		return Daemon{}, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	bundle, err := os.Getwd()
	if err != nil {
		return Daemon{}, nil, err
	}
	defer logToFifo(bundle, a)()
	input, err := ReadInput(stdin)
	if err != nil {
		return Daemon{}, nil, err
	}
	r, err := parseRequest(input, a, func() protocolVersion { return legacyVersion(callerBuild) })
	if err != nil {
		return Daemon{}, nil, err
	}
	r.Bundle = bundle
	if r.Sent, r.Options, err = parseOptions(r.extensions, a.Defaults, a.Namespace); err != nil {
		return Daemon{}, nil, err
	}
	if err := r.recordSocket(); err != nil {
		return Daemon{}, nil, err
	}
	if r.Answer, err = encodeAnswer(r.version, socketAddress(r.SocketPath)); err != nil {
		return Daemon{}, nil, err
	}
	l, joined, err := r.find(ctx)
	switch {
	case err != nil:
		return Daemon{}, nil, err
	case l == nil:
		return Daemon{}, nil, reply(joined)
	}
	if err := detach(r.Daemon, r.Answer); err != nil {
		r.RemoveLink() // if there is one
		return Daemon{}, nil, errors.Join(err, l.Close())
	}
	return r.Daemon, l, nil
}

// reply writes the answer to stdout in one write(2). An [os.File] would end the program if containerd has hung up.
func reply(answer []byte) error {
	if _, err := unix.Write(syscall.Stdout, answer); err != nil {
		return &os.PathError{Op: "write", Path: os.Stdout.Name(), Err: err}
	}
	return nil
}

// request is containerd's request of `start`, and the daemon that results.
type request struct {
	Daemon
	version    protocolVersion
	socketDir  string       // "" means the default
	group      string       // of containers that have one shim
	extensions []*anypb.Any // the options are one of them; at most one before 2.3
}

// maxInput bounds stdin, as in containerd's own shims (pkg/shim/shim.go).
const maxInput = 10 << 20

// ReadInput reads stdin to its end. A terminal counts as empty.
func ReadInput(stdin *os.File) ([]byte, error) {
	if _, err := unix.IoctlGetTermios(int(stdin.Fd()), unix.TCGETS); err == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	if err == nil && len(data) > maxInput {
		err = fmt.Errorf("more than %d bytes: %w", maxInput, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("read stdin: %w", err)
	}
	return data, nil
}

// parseRequest decodes stdin of start: BootstrapParams of containerd 2.3 and later, or an Any of options, or nothing.
// Each message decodes as the other; only BootstrapParams repeat -id and -namespace. legacy finds the version for the
// others.
func parseRequest(input []byte, a Args, legacy func() protocolVersion) (request, error) {
	r := request{Daemon: Daemon{Args: a, TTRPCAddress: os.Getenv("TTRPC_ADDRESS")}}
	var p bootstrapapi.BootstrapParams
	if proto.Unmarshal(input, &p) == nil && p.InstanceID == a.ID && p.Namespace == a.Namespace {
		r.version = protobufVersion3
		// Levels are ordered and open: what is below DEBUG (TRACE and unknown ones) is at least as verbose.
		r.Debug = r.Debug || p.LogLevel <= bootstrapapi.LogLevel_LOG_LEVEL_DEBUG
		r.Address = cmp.Or(p.ContainerdGrpcAddress, r.Address)
		r.TTRPCAddress = cmp.Or(p.ContainerdTtrpcAddress, r.TTRPCAddress)
		r.socketDir = p.GetSocketDir()
		for _, e := range p.Extensions {
			if e.Value != nil {
				r.extensions = append(r.extensions, e.Value)
			}
		}
		return r, nil
	}
	r.version = legacy()
	if len(input) == 0 {
		return r, nil
	}
	var opts anypb.Any
	if err := proto.Unmarshal(input, &opts); err != nil {
		return r, fmt.Errorf("decode stdin, %d bytes, as bootstrap parameters or options: %w: %w",
			len(input), err, errdefs.ErrInvalidArgument)
	}
	r.extensions = []*anypb.Any{&opts}
	return r, nil
}

// encodeAnswer encodes the answer to start without a newline: 0x0a would be a field of protobuf.
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

// parseOptions finds the runtime options among the extensions that containerd sends, and decodes these or the defaults.
func parseOptions(
	list []*anypb.Any, defaults *options.Defaults, namespace string,
) (sent *anypb.Any, o options.Options, err error) {
	if i := slices.IndexFunc(list, func(a *anypb.Any) bool { return options.Known(a.GetTypeUrl()) }); i >= 0 {
		sent = list[i]
	}
	o, err = defaults.Decode(sent, namespace)
	return sent, o, err
}

// protocolVersion is the form of answer that a generation of containerd reads, by the modules' sources:
//
//	containerd  stdin           MAX_SHIM_VERSION  reads                          highest version
//	1.6.38      Any or nothing  absent            plain address only             -
//	1.7.0-35    Any or nothing  "2"               JSON, else plain               2 (3 is refused)
//	2.0-2.2     Any or nothing  "2"               JSON, else plain               3
//	2.3-        BootstrapParams "2"               protobuf, else JSON or plain   3
//
// 1.6 passes the whole text to the dialler (runtime/v2/binary.go), so JSON would be taken for a socket path. 1.7 and
// 2.0 send the same, so the module path in the build information of the parent's executable tells them apart. Without
// one (stripped build information, a product that embeds containerd) version 2 is right for all.
type protocolVersion int

const (
	plainAddress     protocolVersion = iota // 1.6
	jsonVersion2                            // 1.7, and 2.0-2.2 that cannot be recognised
	jsonVersion3                            // 2.0-2.2
	protobufVersion3                        // 2.3 and later
)

// containerd2 is the module path of containerd 2.x.
const containerd2 = "github.com/containerd/containerd/v2"

// legacyVersion finds the version of a containerd before 2.3.
func legacyVersion(caller func() (*debug.BuildInfo, error)) protocolVersion {
	if _, ok := os.LookupEnv("MAX_SHIM_VERSION"); !ok {
		return plainAddress
	}
	// An error means hidepid, not a Go program, or a caller that is gone.
	if bi, err := caller(); err == nil && (bi.Main.Path == containerd2 || strings.HasPrefix(bi.Path, containerd2+"/")) {
		return jsonVersion3
	}
	return jsonVersion2
}

// callerBuild reads the build information of the caller's running image. An upgrade may have replaced the file that
// -publish-binary names.
func callerBuild() (*debug.BuildInfo, error) {
	return buildinfo.ReadFile(fmt.Sprintf("/proc/%d/exe", caller()))
}

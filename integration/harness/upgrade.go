// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Installed is a shim in a directory of its own, which releases replace.
type Installed struct {
	Path     string
	source   string
	first    string // another name of the first release
	releases int
}

// Install returns env with a copy of its shim.
func Install(tb testing.TB, env Env) (Env, *Installed) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "shim-test-")
	Must(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	i, err := InstallIn(dir, env.Shim)
	Must(tb, err)
	env.Shim = i.Path
	return env, i
}

// InstallIn installs a copy of a shim in a directory that has nothing else.
func InstallIn(dir, shim string) (*Installed, error) {
	i := &Installed{
		Path: filepath.Join(dir, filepath.Base(shim)), source: shim, first: filepath.Join(dir, "first"),
	}
	err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
	if err == nil {
		err = i.Next()
	}
	if err == nil {
		err = os.Link(i.Path, i.first)
	}
	return i, err
}

// Release installs another file with the same program in it.
func (i *Installed) Release(tb testing.TB) {
	tb.Helper()
	Must(tb, i.Next())
}

// Next is Release outside of a test.
func (i *Installed) Next() error {
	program, err := os.ReadFile(i.source)
	if err != nil {
		return err
	}
	i.releases++
	return i.replace(append(program, fmt.Sprintf("release %d", i.releases)...))
}

// Replace installs a program.
func (i *Installed) Replace(tb testing.TB, program []byte) {
	tb.Helper()
	Must(tb, i.replace(program))
}

// replace installs a program at once: somebody may start it at any time. No child that somebody starts meanwhile has
// the file open for writing, which would keep it from being executed.
func (i *Installed) replace(program []byte) error {
	next := i.Path + ".new"
	syscall.ForkLock.RLock()
	err := os.WriteFile(next, program, 0o700)
	syscall.ForkLock.RUnlock()
	return errors.Join(err, os.Chmod(next, 0o755), os.Rename(next, i.Path))
}

// Bad installs a program that cannot succeed a shim: it refuses the state, gives no answer, gives way, as a successor
// does that fails, or dies.
func (i *Installed) Bad(tb testing.TB, mode string) {
	tb.Helper()
	Must(tb, i.Spoil(mode))
}

// Spoil is Bad outside of a test. As a delete command, the program is the first release: containerd may call it.
func (i *Installed) Spoil(mode string) error {
	does := map[string]string{
		"refuses": "echo no such thing >&2; exit 1",
		"hangs":   "exec sleep 1000",
		"gives way": "former=$SHIM_TAKE_OVER_FORMER; unset SHIM_TAKE_OVER_FORMER\n" +
			"[ $action = check-state ] || SHIM_TAKE_OVER_FAILURE='it is bad' exec /proc/self/fd/$former \"$@\"",
		"dies": "[ $action = check-state ] || kill -9 $$",
	}[mode]
	return i.replace(fmt.Appendf(nil,
		"#!/bin/sh\nfor action; do :; done\n[ $action != delete ] || exec %q \"$@\"\n%s\nexit 0\n", i.first, does))
}

// Traces installs the first release. While there is a file, Go's runtime traces a start to its standard error.
func (i *Installed) Traces(tb testing.TB, file string) {
	tb.Helper()
	i.Replace(tb, fmt.Appendf(nil,
		"#!/bin/sh\nfor action; do :; done\n[ $action != start ] || [ ! -e %q ] || export GODEBUG=inittrace=1\n"+
			"exec %q \"$@\"\n", file, i.first))
}

// Waits installs the first release, which waits at a gate before it checks a state.
func (i *Installed) Waits(tb testing.TB, gate *Gate) {
	tb.Helper()
	hook := gate.Hook().Args
	i.Replace(tb, fmt.Appendf(nil,
		"#!/bin/sh\nfor action; do :; done\n[ $action != check-state ] || %s -c '%s' %q %q\nexec %q \"$@\"\n",
		hook[0], hook[2], hook[3], hook[4], i.first))
}

// ShimSocket returns the path of the socket of a shim: the name is that which containerd's own shims choose
// (pkg/shim/util_unix.go, SocketAddress). group is the id of the first container, or the annotation of that name.
func (c *Containerd) ShimSocket(namespace, group string) string {
	sum := sha256.Sum256([]byte(filepath.Join(c.Address, namespace, group)))
	return filepath.Join(c.Sockets, hex.EncodeToString(sum[:]))
}

// SocketOf finds the socket that a shim listens on, or returns "" if there is none yet.
func (c *Containerd) SocketOf(pid int) string {
	held := map[string]bool{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		name, _ := os.Readlink(fd)
		held[name] = true
	}
	table, _ := os.ReadFile("/proc/net/unix") // see proc_net_unix(5): the inode, and the path of a socket that has one
	for line := range strings.Lines(string(table)) {
		const inode, path, listens = 6, 7, "00010000"
		f := strings.Fields(line)
		if len(f) > path && f[3] == listens && held["socket:["+f[inode]+"]"] && filepath.Dir(f[path]) == c.Sockets {
			return f[path]
		}
	}
	return ""
}

// RemoveDeadSockets removes the sockets of shims that were killed before they told where they are.
func (c *Containerd) RemoveDeadSockets() {
	all, _ := filepath.Glob(filepath.Join(c.Sockets, "*"))
	for _, path := range all {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close() // nothing was asked
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}

// own calls a method of the shim's own service (pkg/service/inspect.proto), and returns the fields of its answer.
func own(ctx context.Context, address, method string, request []byte) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close() //nolint:errcheck // the answer is in
	var asked, answer emptypb.Empty
	asked.ProtoReflect().SetUnknown(request)
	if err := client.Call(ctx, "io.containerd.sandbox.v1.Inspect", method, &asked, &answer); err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return answer.ProtoReflect().GetUnknown(), nil
}

// Sleep puts a container to sleep.
func Sleep(ctx context.Context, address, id string) error { return ownOf(ctx, address, "Sleep", id) }

// Wake wakes it.
func Wake(ctx context.Context, address, id string) error { return ownOf(ctx, address, "Wake", id) }

func ownOf(ctx context.Context, address, method, id string) error {
	_, err := own(ctx, address, method, protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id))
	return err
}

// Idle is what a shim tells of a container that sleeps.
type Idle struct {
	Asleep  bool   `json:"asleep"`
	Reason  string `json:"reason"`
	Changes uint64 `json:"changes"`
}

// WaitIdle returns once a container has fallen asleep and woken more often than changes.
func WaitIdle(ctx context.Context, address, id string, changes uint64) (i Idle, err error) {
	request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
	request = protowire.AppendVarint(protowire.AppendTag(request, 2, protowire.VarintType), changes)
	answer, err := own(ctx, address, "WaitIdle", request)
	if err != nil {
		return i, err
	}
	_, _, n := protowire.ConsumeTag(answer)
	text, m := protowire.ConsumeBytes(answer[max(n, 0):])
	if m < 0 {
		return i, protowire.ParseError(m)
	}
	return i, json.Unmarshal(text, &i)
}

// Upgrade asks the shim at an address for the program that is installed.
func Upgrade(ctx context.Context, address string, dryRun bool) (version string, upgraded bool, err error) {
	var request []byte
	if dryRun {
		request = protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	}
	b, err := own(ctx, address, "Upgrade", request)
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		b = b[n:]
		switch {
		case number == 1 && kind == protowire.BytesType:
			text, n := protowire.ConsumeString(b)
			version, b = text, b[n:]
		default:
			value, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return "", false, protowire.ParseError(n)
			}
			upgraded, b = value != 0, b[n:]
		}
	}
	return version, upgraded, err
}

// Restore installs the first release again.
func (i *Installed) Restore(tb testing.TB) {
	tb.Helper()
	_ = os.Remove(i.Path) // it may be gone
	Must(tb, os.Link(i.first, i.Path))
}
